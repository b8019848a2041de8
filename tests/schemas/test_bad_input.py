"""Every way a text file can be wrong has its own line: file, line, pointer, what, expected."""

# ruff: noqa: E501 (one case a line reads better)

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas import io
from pliant.schemas.checks import check_fits, check_profiled
from pliant.schemas.errors import BadInputError
from tests.builders import cluster, job, mixed_cluster

GOOD: dict[str, Any] = {"id": "a", "submit_time": 0, "model": "m", "gpus": {"requested": 4}}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problems(read: Any, text: str | bytes, name: str = "jobs.jsonl") -> list[str]:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInputError) as caught:
        read(name)
    return str(caught.value).splitlines()


def job_problems(*lines: str | dict[str, Any]) -> list[str]:
    texts = [line if isinstance(line, str) else json.dumps({**GOOD, **line}) for line in lines]
    return problems(io.read_jobs, "\n".join(texts) + "\n")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": "a b"}, "/id: \"a b\" is not allowed, expected 1 to 128 letters, digits, '.', '_' and '-', the first a letter or digit"),
        ({"submit_time": -1}, "/submit_time: -1 is below 0, expected 0 or more"),
        ({"submit_time": float("nan")}, "/submit_time: NaN is not allowed, expected a finite number"),
        ({"priority": "high"}, '/priority: "high" has the wrong type, expected a number'),
        ({"priority": True}, "/priority: true has the wrong type, expected a number"),
        ({"model": ""}, '/model: "" is too short, expected some text'),
        ({"gpus": {"requested": 2.5}}, "/gpus/requested: 2.5 has the wrong type, expected an integer"),
        ({"gpus": {"requested": 10**23}}, "/gpus/requested: 100000000000000000000000 is above 10,000,000, expected 10,000,000 or less"),
        ({"gpus": 4}, '/gpus: 4 has the wrong type, expected an object, like {"requested": 4}'),
        ({"gpus": {"requested": 4, "min": 4, "max": 2}, "elastic": "size"}, "/gpus/max: 2 is below gpus.min 4"),
        ({"gpus": {"requested": 1, "min": 2}, "elastic": "size"}, "/gpus/requested: 1 is below gpus.min 2"),
        ({"gpus": {"requested": 8, "max": 4}, "elastic": "size"}, "/gpus/requested: 8 is above gpus.max 4"),
        ({"gpus": {"requested": 8, "max": 18, "per_replica": 4}, "elastic": "size"}, "/gpus/max: 18 is not a multiple of gpus.per_replica 4"),
        ({"gpus": {"min": 2, "per_replica": 4}, "elastic": "size"}, "/gpus/requested: 2 is not a multiple of gpus.per_replica 4"),
        ({"gpus": {"sizes": "powers"}}, "/gpus/sizes: \"powers\" is not a form of sizes, expected 'powers-of-two' or a list of numbers of GPUs, like [1, 2, 4]"),
        ({"gpus": {"sizes": []}}, "/gpus/sizes: is empty, expected at least one size"),
        ({"gpus": {"types": []}}, "/gpus/types: is empty, expected at least one GPU type"),
        ({"gpus": {"sizes": [0, 1]}}, "/gpus/sizes/0: 0 is not above 0, expected more than 0"),
        ({"gpus": {"sizes": [1, 2, 2]}}, "/gpus/sizes/2: 2 is not above the size before it, 2"),
        ({"gpus": {"sizes": [4, 6], "per_replica": 4}}, "/gpus/sizes/1: 6 is not a multiple of gpus.per_replica 4"),
        ({"gpus": {"sizes": [2, 4], "requested": 3}, "elastic": "size"}, "/gpus/requested: 3 is not among gpus.sizes"),
        ({"gpus": {"sizes": "powers-of-two", "max": 12}, "elastic": "size"}, "/gpus/max: 12 is not among gpus.sizes"),
        ({"gpus": {"requested": 4, "min": 2}}, "/elastic: 'none' contradicts gpus.min and gpus.max, expected them to equal gpus.requested"),
        ({"batch": {"size": 8, "min": 16}}, "/batch/size: 8 is below batch.min 16"),
        ({"batch": {"size": 8, "max": 4}}, "/batch/size: 8 is above batch.max 4"),
        ({"elastic": "yes"}, "/elastic: \"yes\" is unknown, expected 'none', 'size' or 'size+batch'"),
        ({"colour": "red"}, "/colour: is not a field that this version knows"),
        ({"comand": ["train.py"]}, '/comand: is not a field that this version knows; did you mean "command"?'),
        ({"a/b~": 1}, "/a~1b~0: is not a field that this version knows"),
        ({"labels": {"form:x": 1}}, "/labels/form:x: 1 has the wrong type, expected a string"),
        ({"command": "train.py"}, '/command: "train.py" has the wrong type, expected a list, like ["train.py"]'),
        ({"command": "train.py --lr 0.1"}, '/command: "train.py --lr 0.1" has the wrong type, expected a list, like ["train.py", "--lr", "0.1"]'),
        ({"command": "train.py 'x"}, """/command: "train.py 'x" has the wrong type, expected a list"""),
        ({"gpus": -5}, "/gpus: -5 has the wrong type, expected an object"),
        ({"work": {"dataset_size": 2}}, "/work/epochs: is missing"),
        ({"work": {"samples": 1, "speed": 2}}, "/work/speed: is not a field that this version knows"),
        ({"work": {"samples": 1, "iterations": 2}}, '/work: {"samples": 1, "iterations": 2} is not a form of work, expected exactly one of {samples}, {epochs, dataset_size}, {iterations}, {gpu_seconds}, or null'),
        ({"env": {"": "x"}}, """/env/: "" is not allowed, expected a name, not empty, without '=' and NUL characters"""),
        ({"env": {"A=B": "x"}}, """/env/A=B: "A=B" is not allowed, expected a name, not empty, without '=' and NUL characters"""),
        ({"env": {"A": "\0"}}, '/env/A: "\\u0000" is not allowed, expected text without NUL characters'),
        ({"command": ["a\0"]}, '/command/0: "a\\u0000" is not allowed, expected text without NUL characters'),
        ({"workdir": "\0"}, '/workdir: "\\u0000" is not allowed, expected text without NUL characters'),
        ({"command": ["x" * 200_000]}, "/command: is too long, expected at most 100,000 bytes each and 500,000 in all"),
        ({"work": {"samples": 1e308}}, "/work/samples: 1e+308 is above 1e+18, expected 1e+18 or less"),
        ({"seed": 2**64}, "/seed: 18446744073709551616 is not below 18,446,744,073,709,551,616, expected less than 18,446,744,073,709,551,616"),
        ({"work": 5}, "/work: 5 is not a form of work, expected exactly one of {samples}, {epochs, dataset_size}, {iterations}, {gpu_seconds}, or null"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_line(change: dict[str, Any], expected: str) -> None:
    assert job_problems(change) == [f"jobs.jsonl:1: {expected}"]


def test_problems_are_told_in_one_go_up_to_twenty() -> None:
    text = '{"schema": "pliant.cluster/1", "nodes": "n1", "slurm": 3}'
    assert problems(io.read_cluster, text, "cluster.json") == [
        'cluster.json:1: /nodes: "n1" has the wrong type, expected a list',
        "cluster.json:1: /slurm: 3 has the wrong type, expected an object",
    ]
    # Every problem of a file is told in one go.
    assert job_problems({"submit_time": -1, "lr": 0}, {"id": "b"}, "{", {"id": "b"}, {"id": 3}) == [
        "jobs.jsonl:1: /submit_time: -1 is below 0, expected 0 or more",
        "jobs.jsonl:1: /lr: 0 is not above 0, expected more than 0",
        "jobs.jsonl:3: not valid JSON: expecting property name enclosed in double quotes (column 2)",
        'jobs.jsonl:4: /id: "b" is used twice, first on line 2, expected unique ids',
        "jobs.jsonl:5: /id: 3 has the wrong type, expected a string",
    ]
    # Twenty problems are shown and the rest is counted.
    lines = job_problems(*[{"id": f"j{i}", "lr": 0} for i in range(25)])
    assert len(lines) == 21
    assert lines[-1] == "… and 5 more"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", ["jobs.jsonl: is empty"]),
        (b'{"id": "\xff"}', ["jobs.jsonl:1: not valid UTF-8 (byte 0xff), expected JSON in UTF-8"]),
        (b"[1]", ["jobs.jsonl:1: [1] has the wrong type, expected an object"]),
        (b"[" * 20000, ["jobs.jsonl:1: not readable JSON: nested too deeply"]),
        (b'{"labels": ' + b'{"a":' * 300 + b"1" + b"}" * 301, ["jobs.jsonl:1: not readable JSON: recursion limit exceeded"]),
        (b'{"user": "\\ud800"}', ["jobs.jsonl:1: not readable JSON: unexpected end of hex escape"]),
        (b'{\n"id": "a"\n}', ["jobs.jsonl: is one JSON text over many lines, expected one JSON object a line"]),
        (b'{"schema":"pliant.job/2"}', ["jobs.jsonl:1: /schema: major version 2 of 'job' is unknown, this pliant reads version 1"]),
        (b'{"schema":"pliant.cluster/1",\n"nodes":[]}', ["jobs.jsonl:1: /schema: this is a 'cluster' file, expected a 'job' file ('pliant.job/1')"]),
        (b'{"schema":"jobs"}', ["jobs.jsonl:1: /schema: 'jobs' is not a schema identifier, expected 'pliant.job/1'"]),
        (b'{"id":"a","schema":7}', ["jobs.jsonl:1: /schema: 7 is not a schema identifier, expected 'pliant.job/1'"]),
        (b'{"schema":"pliant.job/1"}\n{"schema":"pliant.event/1"}', ["jobs.jsonl:2: /schema: this is an 'event' file, expected a 'job' file ('pliant.job/1')"]),
    ],
)  # fmt: skip
def test_a_file_that_is_no_job_file_is_one_line(text: bytes, expected: list[str]) -> None:
    assert problems(io.read_jobs, text) == expected


def test_a_missing_file_a_folder_and_a_forbidden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("folder").mkdir()
    with pytest.raises(BadInputError, match=r"^none\.jsonl: no such file$"):
        io.read_jobs("none.jsonl")
    with pytest.raises(BadInputError, match=r"^folder: is a directory, expected a file$"):
        io.read_jobs("folder")

    Path("jobs.jsonl").touch()

    def refuse(_path: Path, _mode: str) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadInputError, match=r"^jobs\.jsonl: cannot be read: permission denied$"):
        io.read_jobs("jobs.jsonl")


def test_a_key_given_twice_is_not_silently_the_last_one() -> None:
    twice = '{"id": "a", "submit_time": 0, "model": "m", "gpus": {"requested": 4, "requested": 8}}'
    fine = '{"id": "b", "submit_time": 0, "model": "m", "gpus": {"requested": 4, "max": 8}, "batch": {"max": 8}, "elastic": "size"}'
    assert problems(io.read_jobs, f"{fine}\n{twice}\n") == [
        'jobs.jsonl:2: key "requested" is given twice in one object, expected once'
    ]
    text = '{"nodes": [{"name": "a", "gpus": 1}], "nodes": [{"name": "b", "gpus": 1}]}'
    assert problems(io.read_cluster, text, "cluster.json") == [
        'cluster.json: key "nodes" is given twice in one object, expected once'
    ]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ('[{"name": "a"}]', "/nodes/0/gpus: is missing"),
        ('[{"name": "a", "gpus": 2, "devices": ["0", "0"]}]', "/nodes/0/devices: names 1 device, expected 2 as in gpus"),
        ('[{"name": "a", "gpus": 1, "count": 2, "devices": ["0"]}]', "/nodes/0/devices: is for one node, expected no count beside it"),
        ('[{"name": "a", "gpus": 1000000000}]', "/nodes/0/gpus: 1000000000 is above 1,024, expected 1,024 or less"),
        ('[{"name": "a", "gpus": 1, "count": 1000000000}]', "/nodes/0/count: 1000000000 is above 1,000,000, expected 1,000,000 or less"),
        ('[{"name": "a", "gpus": 1000, "count": 10001}]', "/nodes: 10,001,000 GPUs in all, expected 10,000,000 or less"),
        ('[{"name": "a", "gpus": 0, "count": 900000}, {"name": "b", "gpus": 0, "count": 900000}]', "/nodes: 1,800,000 nodes in all, expected 1,000,000 or less"),
        ('[{"name": "a", "gpus": 1}, {"name": "a", "gpus": 1}]', "/nodes/1/name: node name 'a' is used twice"),
        ("[", None),
    ],
)  # fmt: skip
def test_a_cluster_can_be_wrong(nodes: str, expected: str | None) -> None:
    result = problems(io.read_cluster, '{"nodes": ' + nodes + "}", "cluster.json")
    assert result == [f"cluster.json:1: {expected or 'not valid JSON: expecting value (column 12)'}"]


@pytest.mark.parametrize(
    ("option", "is_ours"),
    [
        *((option, True) for option in ("--job-name=mine", "--job-n=mine", "-Jmine", "--array=1-9", "-W")),
        *((option, False) for option in ("--wait-all-nodes=1", "--constraint=ib", "-Cib")),
    ],
)
def test_options_of_slurm_leave_its_jobs_to_be_found(option: str, is_ours: bool) -> None:
    nodes, options = '[{"name": "a", "gpus": 1}]', f'{{"options": ["-G1", "{option}"]}}'
    text = f'{{"nodes": {nodes}, "slurm": {options}}}'
    if is_ours:
        message = f"/slurm/options/1: {option.partition('=')[0]} is set by pliant itself"
        assert problems(io.read_cluster, text, "cluster.json") == [f"cluster.json:1: {message}"]
    else:
        Path("cluster.json").write_text(text)
        assert io.read_cluster("cluster.json").slurm.options == ("-G1", option)


RESERVED = '"reservations": [{"name": "r", "nodes": ["a"], "begin": "2026-12-24T08:00:00Z", "end": %s}]'


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (RESERVED % '"2026-12-24T09:00:00+01:00"', "/reservations/0/end: is not after its begin"),
        (RESERVED % 5, "/reservations/0/end: is not after its begin"),
        (RESERVED % '"at noon"', "/reservations/0/end: \"at noon\" is wrong: value error, expected seconds, or a date like 2026-03-01 or 2026-03-01T08:30"),
        (RESERVED % '2e9, "teams": ["t"]', "/reservations/0/teams: names team 't', and no teams share the cluster"),
        (RESERVED.replace('["a"]', "[]") % 2e9, "/reservations/0/nodes: names no node"),
        (RESERVED.replace('["a"]', '["b"]') % 2e9, "/reservations/0/nodes: the cluster has no node 'b'"),
        (RESERVED.replace("[{", '[{"name": "r", "nodes": ["a"], "begin": 1, "end": 2}, {') % 2e9, "/reservations/1/name: reservation 'r' is there twice"),
        ('"slurm": {"leases": {"min_nodes": 2, "max_nodes": 1}}', "/slurm/leases/min_nodes: 2 is above max_nodes 1"),
        ('"backend": "slurm-jobs", "slurm": {"leases": {}}', '/slurm/leases: is for the backend "slurm": this one leases no nodes'),
    ],
)  # fmt: skip
def test_reservations_and_leases_can_be_wrong(rest: str, expected: str) -> None:
    text = '{"nodes": [{"name": "a", "gpus": 1}], ' + rest + "}"
    assert problems(io.read_cluster, text, "cluster.json") == [f"cluster.json:1: {expected}"]


SCHEDULE = '{"schema": "pliant.schedule/1", "time": 0, "policy": {"name": "p"}, "cluster": {"nodes": []}'


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ('"allocations": [{"job": "a", "gpus": 3, "placement": [["n", 2]], "action": "start"}]', "/allocations/0/placement: places 2 GPUs, expected 3 as in gpus"),
        ('"allocations": [{"job": "a", "gpus": 2, "action": "preempt"}]', "/allocations/0/gpus: is 2 in a preemption, expected 0"),
        ('"allocations": [{"job": "a", "gpus": 2, "batch": {"global": 64, "local": 8, "accum": 2}, "action": "keep"}]', "/allocations/0/batch: 8 samples in each of 2 micro-steps on 2 GPUs do not add up to the global batch of 64"),
        ('"allocations": [{"job": "a", "gpus": 2, "batch": {"global": 2, "local": 1, "accum": 2}, "action": "keep"}]', "/allocations/0/batch: 1 samples in each of 2 micro-steps on 2 GPUs do not add up to the global batch of 2"),
        ('"allocations": [{"job": "a", "gpus": 4, "batch": {"global": 3, "local": 1}, "action": "keep"}]', "/allocations/0/batch/global: is 3 for 4 GPUs, expected a sample for each"),
        ('"allocations": [{"job": "a", "gpus": 0, "batch": {"global": 3, "local": 1}, "action": "preempt"}]', "/allocations/0/batch/global: is 3 for 0 GPUs, expected a sample for each"),
        ('"allocations": [{"job": "a", "gpus": 6, "action": "start"}], "jobs": [{"id": "a", "model": "m", "elastic": "size", "gpus": {"per_replica": 4}}]', "/allocations/0/gpus: is 6, expected a multiple of gpus.per_replica 4 of its job"),
        ('"allocations": [{"job": "a", "gpus": 6, "action": "start"}], "jobs": [{"id": "a", "model": "m", "elastic": "size", "gpus": {"sizes": "powers-of-two"}}]', "/allocations/0/gpus: is 6, expected one of gpus.sizes of its job"),
        ('"allocations": [{"job": "a", "gpus": 8, "batch": {"global": 64, "local": 8}, "action": "start"}], "jobs": [{"id": "a", "model": "m", "elastic": "size", "gpus": {"per_replica": 4}}]', "/allocations/0/batch: 8 samples in each of 1 micro-step on 2 replicas do not add up to the global batch of 64"),
        ('"waiting": [{"job": "a", "reason": ""}, {"job": "a", "reason": ""}]', '/waiting/1/job: "a" is used twice, expected each job once'),
        ('"allocations": [{"job": "a", "gpus": 2, "action": "start"}], "jobs": [{"id": "a", "submit_time": 0, "model": "m", "gpus": {"requested": 4}}]', '/allocations/0/gpus: is 2, but job "a" is not elastic, expected 4 or 0'),
        ('"policy_state": {"policy": "p", "state": [1, {"x": Infinity}]}', "/policy_state/state/1/x: NaN and infinities are not allowed, expected a finite number"),
        ('"policy_state": {"policy": "p", "state": 1e999}', "/policy_state/state: NaN and infinities are not allowed, expected a finite number"),
        ('"jobs": [{"id": "a", "submit_time": 0, "model": "m", "gpus": {"requested": 1, "max": 0}}]', "/jobs/0/gpus/max: 0 is not above 0, expected more than 0"),
    ],
)  # fmt: skip
def test_a_schedule_can_be_wrong(rest: str, expected: str) -> None:
    assert problems(io.read_schedule, f"{SCHEDULE}, {rest}}}", "s.json") == [f"s.json:1: {expected}"]


MANY_DIGITS = "9" * 5000
SCHEMA_LAST = '{"runs": [], "schema": "pliant.metrics/1"}'


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (io.read_cluster, '{"schema": "pliant.cluster/1",\n"nodes": [\n  {"name": "a", "gpus": 1},\n  {"name": "b",\n   "gpus": -1}\n]}', ["5: /nodes/1/gpus: -1 is below 0, expected 0 or more"]),
        (io.read_cluster, f'{{"schema": "pliant.cluster/1",\n"nodes": [{{"name": "a", "gpus": {MANY_DIGITS}}}]}}', ["2: not readable JSON: a number has too many digits"]),
        (io.read_jobs, f'{json.dumps(GOOD)}\n{{"id": {MANY_DIGITS}}}', ["2: not readable JSON: a number has too many digits"]),
        (io.read_schedule, f'{SCHEDULE},\n"allocations": [{{"job": "a", "gpus": 1,\n"placement": [["n"]], "action": "start"}}]}}', ["3: /allocations/0/placement/0/1: is missing"]),
        (io.read_cluster, '{"nodes": [{"name": "n0", "gpus": 4, "gpu_typ": "x"}], "slot": "cpu"}', [
            '1: /nodes/0/gpu_typ: is not a field that this version knows; did you mean "gpu_type"?',
            '1: /slot: is not a field that this version knows; did you mean "slots"?',
        ]),
        (io.read_events, '{"schema": "pliant.event/1"}\n{"time": 1, "event": "preempt", "job": "a", "gpus": 2}\n', ["2: /gpus: is 2 in a 'preempt' event, expected 0"]),
        (io.read_cluster, "[1]", ["1: expected a JSON object (a 'cluster' file)"]),
        (io.read_schedule, "{}", ["1: /schema: is missing, expected 'pliant.schedule/1'"]),
        (io.read_metrics, '{"runs": []}', ["1: /schema: is missing, expected 'pliant.metrics/1'"]),
        (io.read_events, '{"id": "a", "command": ["train.py"]}\n', ['1: /schema: is missing, expected {"schema": "pliant.event/1"} as the first line']),
        (io.read_events, '{"time": 0, "event": "decision", "detail": {"schema": "pliant.event/1"}}\n', ['1: /schema: is missing, expected {"schema": "pliant.event/1"} as the first line']),
        (io.read_metrics, SCHEMA_LAST.replace("/1", "/9"), ["1: /schema: major version 9 of 'metrics' is unknown, this pliant reads version 1"]),
        (io.read_metrics, SCHEMA_LAST.replace(', "s', ',\n"s').replace("metrics", "job"), ["2: /schema: this is a 'job' file, expected a 'metrics' file ('pliant.metrics/1')"]),
    ],
)  # fmt: skip
def test_a_problem_has_the_line_of_its_value(read: Any, text: str, expected: list[str]) -> None:
    assert problems(read, text, "file") == [f"file:{line}" for line in expected]


def test_a_document_whose_schema_comes_last_is_read() -> None:
    Path("m.json").write_text(SCHEMA_LAST)
    assert io.read_metrics("m.json").runs == ()


@pytest.mark.parametrize("schema", ["x" * 5000, 10**4000, f"pliant.job/{'9' * 5000}"])
def test_a_long_value_is_cut_in_a_message(schema: object) -> None:
    (problem,) = job_problems({"schema": schema})
    assert "is not a schema identifier" in problem
    assert len(problem) < 200


def test_a_newer_minor_version_is_read_and_still_checked(caplog: pytest.LogCaptureFixture) -> None:
    newer = {**GOOD, "shape": "round", "gpus": {"requested": 4, "vendor": "x"}}
    Path("jobs").write_text('{"schema":"pliant.job/1.9"}\n' + json.dumps(newer) + "\n")
    Path("cluster").write_text(
        '{"schema": "pliant.cluster/1.9", "nodes": [{"name": "n", "gpus": 1, "x": 1}]}'
    )
    with caplog.at_level(logging.WARNING, "pliant"):
        jobs, nodes = io.read_jobs("jobs"), io.read_cluster("cluster").nodes
    assert [each.gpus.requested for each in jobs] == [4]
    assert [node.name for node in nodes] == ["n"]
    assert [record.getMessage() for record in caplog.records] == [
        "jobs: from a newer minor version, fields left out: /gpus/vendor, /shape",
        "cluster: from a newer minor version, fields left out: /nodes/0/x",
    ]
    # A newer minor version is still checked.
    newer = json.dumps({"schema": "pliant.job/1.9", **GOOD, "shape": "round", "submit_time": -1})
    assert "jobs.jsonl:1: /submit_time: -1 is below 0, expected 0 or more" in problems(io.read_jobs, newer)


def test_jobs_that_the_cluster_or_profile_cannot_serve() -> None:
    jobs = [job("small", gpus=8), job("shrinks", gpus=16, low=2), job("huge", gpus=16)]
    with pytest.raises(BadInputError) as caught:
        check_fits(jobs, cluster(4, 4), "jobs.jsonl")
    assert str(caught.value) == 'jobs.jsonl: job "huge" needs 16 GPUs, the cluster has 8'
    check_fits(jobs[:2], cluster(4, 4), "jobs.jsonl")
    # A model without a profile is refused.
    jobs = [job("a", model="resnet51"), job("b", model="bert"), job("c", model="zzz")]
    with pytest.raises(BadInputError) as caught:
        check_profiled(jobs, {"resnet50", "bert"}, "jobs.jsonl")
    assert str(caught.value).splitlines() == [
        'jobs.jsonl: job "a": model "resnet51" is not profiled, expected something like "resnet50"',
        'jobs.jsonl: job "c": model "zzz" is not profiled, expected one of bert, resnet50',
    ]
    check_profiled(jobs[1:2], {"bert"}, "jobs.jsonl")
    # A gang never mixes types so it must fit one of them.
    both = mixed_cluster(one=(4,), two=(2, 2))
    check_fits([job("fits", gpus=4), job("shrinks", gpus=6, low=4)], both, "jobs.jsonl")
    with pytest.raises(BadInputError) as caught:
        check_fits([job("gang", gpus=6)], both, "jobs.jsonl")
    assert str(caught.value) == 'jobs.jsonl: job "gang" needs 6 GPUs of one type, the cluster has 4'
    with pytest.raises(BadInputError, match='job "a" needs 1 GPU, the cluster has 0'):
        check_fits([job("a")], cluster(), "jobs.jsonl")
    # A batch that does not divide evenly still adds up.
    uneven = '{"job": "a", "gpus": 3, "batch": {"global": 100, "local": 9, "accum": 4}, "action": "keep"}'
    Path("s.json").write_text(f'{SCHEDULE}, "allocations": [{uneven}]}}')
    assert io.read_schedule("s.json").allocations[0].gpus == 3
