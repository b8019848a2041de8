from pathlib import Path

from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmStep

RECORDED = Path(__file__).with_name("recorded")


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def node(release: str, name: str) -> parsing.SlurmNode:
    (result,) = [one for one in parsing.nodes(recorded(f"{release}-nodes")) if one.name == name]
    return result


def test_a_node_says_what_it_has_and_whether_it_serves() -> None:
    n0, gpu01, a100 = node("22.05", "n0"), node("20.11", "gpu01"), node("23.11", "a100-01")
    assert (n0.address, n0.host, n0.partitions) == ("127.0.0.1", "login1", ("main",))
    assert (n0.cpus, n0.memory_bytes, n0.gpus) == (8, 1000 << 20, (("", 4),))
    assert (n0.state, n0.version, n0.reason) == ({"ALLOCATED"}, "22.05.8", "")
    assert (n0.features, n0.cores) == ((), 8)
    assert (gpu01.features, gpu01.cores, gpu01.memory_bytes) == (("v100",), 32, 190000 << 20)
    assert (a100.cpus, a100.cores, a100.gpu_count()) == (126, 63, 20)  # two are kept for the system
    assert parsing.state_words("IDLE*+DRAIN") == {"IDLE", "DRAIN", "NOT_RESPONDING"}
    assert parsing.state_words("mixed#") == {"MIXED", "POWERING_UP"}
    assert not node("20.11", "gpu02").responds
    assert node("20.11", "gpu01").responds
    # A node serves or has a reason of any words.
    assert node("22.05", "n2").reason == "disk = bad"
    assert node("20.11", "gpu02").reason == "fan 3, slot=2"
    assert node("24.05", "queue-dy-2").reason == "gres/gpu count reported lower than configured (0 < 1)"
    line = (
        "NodeName=n0 State=DOWN CPUTot=8 Gres=gpu:a100:2,gpu:v100:1 Reason=was State=IDLE before [root@now]"
    )
    (down,) = parsing.nodes(line)
    assert (down.serves, down.state) == (False, {"DOWN"})
    assert (down.gpu_count(), down.gpu_count("gpu:a100")) == (3, 2)
    # A node serves or it does not.
    for release, expected in {
        "20.11": {"gpu01": True, "gpu02": False},
        "22.05": {"n0": True, "n1": False, "n2": False, "n3": True},
        "23.11": {"a100-01": True, "a100-02": None},  # the controller was just started
        "24.05": {"queue-dy-1": True, "queue-dy-2": False},
        "25.05": {"h100-1": True},
    }.items():
        assert {name: node(release, name).serves for name in expected} == expected


def test_gpus_are_counted_by_type() -> None:
    for text, gpus in {
        "gpu:4": (("", 4),),
        "gpu": (("", 1),),
        "gpu:a100": (("a100", 1),),
        "gpu:4(S:0,1)": (("", 4),),
        "gpu(S:0-1):4": (("", 4),),
        "gpu:a100:2(S:0),gpu:v100:2(S:1)": (("a100", 2), ("v100", 2)),
        "gpu:nvidia_h100_80gb_hbm3:8(S:0-1),shard:16": (("nvidia_h100_80gb_hbm3", 8),),
        "gpu:1g.5gb:7,gpu:a100:1": (("1g.5gb", 7), ("a100", 1)),
        "gpu:a100:no_consume:4,gpu:no_consume:2": (("a100", 4), ("", 2)),
        "(null)": (),
        "craynetwork:4": (),
    }.items():
        assert parsing.gpus(text) == gpus


def test_releases_jobs_steps_and_settings_are_read() -> None:
    assert parsing.jobs(recorded("22.05-jobs")) == [
        SlurmJob("4", "PENDING", "", "Resources", 1000, "a|b c"),
        SlurmJob("3", "RUNNING", "n0", "None", 0, "pliant-0a1b2c3d4e5f-n0"),
    ]
    steps = parsing.steps(recorded("22.05-steps"))
    assert steps == [SlurmStep("3.0", "n0", "resnet.2.0"), SlurmStep("3.batch", "n0", "batch")]
    assert steps[0].job_id == "3"
    settings = parsing.settings(recorded("22.05-config"))
    assert (settings["SlurmdTimeout"], settings["GresTypes"]) == ("10 sec", "gpu")
    assert parsing.version("slurm-wlm 22.05.8\n") == (22, 5)
    assert parsing.version("slurm 24.11.0-0rc1\n") == (24, 11)
    assert parsing.version("") is None
    assert parsing.partitions(recorded("22.05-partitions")) == [
        parsing.SlurmPartition("main", default=True, up=True, limit="")
    ]
    assert parsing.partitions(recorded("25.05-partitions")) == [
        parsing.SlurmPartition("gpu", default=False, up=True, limit="2-00:00:00"),
        parsing.SlurmPartition("long", default=False, up=False, limit=""),
    ]
    # Other lines are passed over.
    other = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n\n"
    for read in (parsing.jobs, parsing.steps, parsing.nodes, parsing.settings):
        assert not read(other)


def test_topologies_and_lists_of_hosts_are_read() -> None:
    assert parsing.topology(recorded("22.05-topology")) == {
        "switch0": {"n0": "rack0", "n1": "rack0", "n2": "rack1", "n3": "rack1"},
        "switch1": dict.fromkeys(("n0", "n1", "n2", "n3"), "top"),
    }
    blocks = [
        "BlockName=b0 BlockIndex=0 Nodes=10.0.0.1,10.0.0.2 BlockSize=2",
        "BlockName=b1 BlockIndex=1 Nodes=10.0.0.3,10.0.0.4 BlockSize=2",
        "AggregatedBlock=b[0-1] BlockIndex=2 Nodes=10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4 BlockSize=4",
    ]
    levels = parsing.topology("\n".join(blocks))
    assert list(levels) == ["block", "blocks4"]
    assert levels["block"]["10.0.0.3"] == "b1"
    assert set(levels["blocks4"].values()) == {"b[0-1]"}
    overlapping = "SwitchName=a Level=0 Nodes=n[0-1]\nSwitchName=b Level=0 Nodes=n[1-2]"
    assert parsing.topology(overlapping) == {}
    assert parsing.topology("scontrol: error: No topology information available") == {}
    # A list of hosts is spelt out.
    for text, names in {
        "n0": ["n0"],
        "n[01-03,7]x,m": ["n01x", "n02x", "n03x", "n7x", "m"],
        "r[0-1]n[1-2]": ["r0n1", "r0n2", "r1n1", "r1n2"],
        "n[9-10]": ["n9", "n10"],
        "(null)": [],
        "": [],
    }.items():
        assert parsing.host_names(text) == names


def test_reservations_that_close_whole_nodes_to_an_account_alone() -> None:
    times = "StartTime=2026-11-30T10:00:00 EndTime=2026-11-30T12:00:00"
    text = "\n".join(
        f"ReservationName={name} {times} Nodes=n[0-1] Flags={flags} Users={users} Comment=x"
        for name, flags, users in (
            ("fans", "MAINT,SPEC_NODES", "ada"),
            ("other", "SPEC_NODES", "bob,eve"),
            ("own", "SPEC_NODES", "bob,ada"),
            ("cores", "PART_NODES,SPEC_NODES", "bob"),
            ("soon", "TIME_FLOAT,SPEC_NODES", "bob"),
        )
    )
    assert [each.name for each in parsing.reservations(text, "ada")] == ["fans", "other"]
