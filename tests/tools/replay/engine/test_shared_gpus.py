"""Jobs that train on the same GPUs: by hand."""

from __future__ import annotations

from pliant.schemas.cluster import Cluster, Sharing
from pliant.schemas.job import Job
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.progress.protocol import SampleProgress, Segment
from pliant.tools.schedule.jobs import EpochEnd, JobState
from tests.builders import cluster, job
from tests.tools.replay.world import Pairs, ends, play


def shared(*node_gpus: int, speed: float = 0.5) -> Cluster:
    sharing = Sharing(unmeasured="together", speed=speed)
    return cluster(*node_gpus).model_copy(update={"sharing": sharing})


def two(a_seconds: float = 20, b_seconds: float = 60, **more: float) -> list[Job]:
    """Jobs of two GPUs, with so many seconds of work on them alone."""
    a = job("a", gpus=2, gpu_seconds=2 * a_seconds, **more)
    return [a, job("b", gpus=2, gpu_seconds=2 * b_seconds)]


def test_two_jobs_on_the_same_gpus_train_at_half_speed_until_one_ends() -> None:
    # a has 20 s of work, done at 40; b has done 20 of its 60 s by then.
    assert ends(play(Pairs({0: {"a": 2, "b": "a"}}), two(), shared(2))) == {"a": 40, "b": 80}


def test_company_that_comes_later_slows_from_then_on() -> None:
    policy = Pairs({0: {"a": 2}, 10: {"b": "a"}}, again_s=[10])
    # a: 10 s alone, its last 10 s take 20. b: 10 of its 60 s by 30, 50 s alone.
    assert ends(play(policy, two(), shared(2))) == {"a": 30, "b": 80}


def test_company_that_is_taken_away_slows_no_longer() -> None:
    policy = Pairs({0: {"a": 2, "b": "a"}, 10: {"b": 0}, 50: {"b": 2}}, again_s=[10, 50])
    assert ends(play(policy, two(), shared(2))) == {"a": 10 + 15, "b": 50 + 55}


def test_a_job_that_still_pays_its_start_slows_the_other_already() -> None:
    policy = Pairs({0: {"a": 2}, 10: {"b": "a"}}, again_s=[10])
    simulated = SimulatedCluster(start_cost=Cost(4))
    # a: trains from 4, has done 6 s at 10, and 14 s are left. b: trains from 14, alone from 38.
    assert ends(play(policy, two(), shared(2), simulated=simulated)) == {"a": 38, "b": 38 + 60 - 12}


def test_a_node_that_goes_down_takes_both_back_to_their_checkpoints() -> None:
    # Both have trained 35 s at half speed: checkpoints come every 10 s for a, at 30, and every 60 s for b.
    down = SimulatedCluster(node_events=(NodeEvent(35, "n0", up=False), NodeEvent(40, "n0", up=True)))
    policy = Pairs({0: {"a": 2, "b": "a"}, 40: {"a": 2, "b": "a"}})
    found = ends(play(policy, two(checkpoint_seconds=10.0), shared(2), simulated=down))
    # a: 5 s left take 10. b: 5 of 60 s by 50.
    assert found == {"a": 50, "b": 50 + 55}


def test_a_checkpoint_from_before_the_company_came_counts_as_it_was() -> None:
    down = SimulatedCluster(node_events=(NodeEvent(15, "n0", up=False), NodeEvent(16, "n0", up=True)))
    policy = Pairs({0: {"a": 2}, 12: {"b": "a"}, 16: {"a": 2}}, again_s=[12])
    # The checkpoint at 10: 10 s of work, 10 s to go from 16 on.
    found = ends(play(policy, two(checkpoint_seconds=10.0), shared(2), simulated=down))
    assert found == {"a": 26}


class Epochs(SampleProgress):
    """Epochs of 10 samples."""

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        number = int(samples_done // 10) + 1
        rate = job.samples_per_second * speed_factor
        return Segment(rate, 10.0 * number, epoch_end=EpochEnd(number, 10.0 * number))


def test_epochs_go_on_at_the_speed_beside_the_other() -> None:
    simulated = SimulatedCluster(progress=Epochs)
    found = ends(play(Pairs({0: {"a": 2, "b": "a"}}), two(), shared(2), simulated=simulated))
    assert found == {"a": 40, "b": 80}


def test_the_log_says_who_is_beside_whom() -> None:
    engine = play(Pairs({0: {"a": 2}, 10: {"b": "a"}}, again_s=[10]), two(), shared(2))
    starts = {event.job: event.detail for event in engine.log.events() if event.event == "start"}
    assert starts == {"a": None, "b": {"beside": "a"}}
