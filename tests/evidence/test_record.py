"""The record: lossless, append-only, and readable after a kill."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detdiag.errors import DetdiagError
from detdiag.evidence.case import Margin, ProbeStatus
from detdiag.evidence.finding import Evidence, Finding, Locus, Remedy
from detdiag.evidence.observation import Candidate, Observation, Output, Position, Route
from detdiag.evidence.record import RecordWriter, read_record

FULL = Observation(
    id="o1",
    query="q",
    request={"model": "m", "seed": 2**63 + 1},
    surface="openai.chat",
    prompt_token_ids=(1, 2),
    output=Output(
        "t\u202e\x00",
        (5, 2**60 + 1),
        "stop",
        (Position("A", 5, -0.1, (Candidate("A", 5, -0.1), Candidate(None, 9, 5e-324))),),
        ("00ff",),
    ),
    routing=(Route(0, 0, (3, 1), (0.5, 0.3), (0.1, 0.3), "bfloat16", True),),
    factors={"batch_size": 8, "x": 0.1 + 0.2},
    response={"id": 1},
    role="intervention",
)
FINDING = Finding(
    "batch", "batch.size-sensitive", "failed", "text", "high", subject="s",
    evidence=(Evidence("m", 1, 2, "pairs", (0.1, 0.9), ("a",)),), remedy=Remedy("do", "cmd"),
    locus=Locus("q", 3, "model.layers.0", "aten.linear"), mechanism=True, explains=("row",),
    proven=True, data={"a": [1, None]},
)  # fmt: skip


def write(path: Path, *events: object) -> None:
    with RecordWriter(path, {"target": {"name": "m"}}) as record:
        for event in events:
            record.write(event)  # type: ignore[arg-type]


def test_everything_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "r.ndjson"
    margin = Margin("q", 3, "x", 0.125, 1.0, math.inf, True)
    write(path, FULL, FINDING, ProbeStatus("batch", "done"), margin, ("sweep", [1, {"a": None}]))
    case = read_record(path)
    observation = case.observations[0]
    assert {**observation.to_dict()} == FULL.to_dict()
    assert case.findings == (FINDING,)
    assert case.probes == (ProbeStatus("batch", "done"),)
    assert case.margins == (margin,)
    assert case.series["sweep"] == [1, {"a": None}]
    assert case.target == {"name": "m"}


@given(st.floats(allow_nan=False), st.integers())
def test_numbers_are_lossless(tmp_path_factory, value: float, whole: int) -> None:
    path = tmp_path_factory.mktemp("r") / "r.ndjson"
    top = (Candidate("a", None, value),)
    output = Output(positions=(Position("a", None, value, top),))
    write(path, Observation("o", output=output, factors={"v": value, "n": whole}))
    back = read_record(path).observations[0]
    assert back.output.positions is not None
    got = back.output.positions[0].logprob
    assert got is not None
    assert got.hex() == value.hex()
    assert back.factors["n"] == whole


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_cut_last_line_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r.ndjson"
    write(path, Observation("a"), Observation("b" * 50))
    path.write_bytes(path.read_bytes()[: -cut - 1])
    assert [o.id for o in read_record(path).observations] == ["a"]


def test_a_broken_line_inside_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "r.ndjson"
    write(path, Observation("a"))
    path.write_bytes(path.read_bytes() + b"{broken\n" + b"{}\n")
    with pytest.raises(DetdiagError, match=r"r\.ndjson:3: not valid JSON"):
        read_record(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.ndjson"
    path.write_text('{"id": "o1"}\n')
    with pytest.raises(DetdiagError, match="header"):
        read_record(path)
    path.write_text("")
    with pytest.raises(DetdiagError, match="empty"):
        read_record(path)
    with pytest.raises(DetdiagError, match="cannot read"):
        read_record(tmp_path / "none.ndjson")


def test_a_layer_started_again_replaces_its_unfinished_run(tmp_path: Path) -> None:
    path = tmp_path / "r.ndjson"
    with RecordWriter(path, {}) as record:
        for layer, ident in (("config", "c"), ("batch", "half")):
            record.write_line({"type": "start", "layer": layer})
            record.write(Observation(ident))
            if layer == "config":
                record.write(ProbeStatus("config", "done"))
    path.write_bytes(path.read_bytes() + b'{"type": "obser')
    with RecordWriter(path, {}, append=True) as record:
        record.write_line({"type": "start", "layer": "batch"})
        record.write(Observation("whole"))
        record.write(ProbeStatus("batch", "done"))
    case = read_record(path)
    assert [o.id for o in case.observations] == ["c", "whole"]
    assert [p.layer for p in case.probes] == ["config", "batch"]


def test_kill_nine_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "r.ndjson"
    program = (
        "import sys, pathlib, time\n"
        "from detdiag.evidence.record import RecordWriter\n"
        "from detdiag.evidence.observation import Observation\n"
        "w = RecordWriter(pathlib.Path(sys.argv[1]), {})\n"
        "for i in range(100): w.write(Observation(f'o{i}'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert len(read_record(path).observations) == 100


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "field 'id'"),
        ({"id": ""}, "field 'id'"),
        ({"id": "a", "factors": []}, "field 'factors'"),
        ({"id": "a", "output": {"token_ids": ["x"]}}, "token_ids"),
        ({"id": "a", "output": {"positions": [{"top": [{}]}]}}, "candidate logprob"),
        ({"id": "a", "routing": [{"block": 0}]}, "routing position"),
        ([], "an observation"),
    ],
)
def test_wrong_types_name_the_field(raw: object, message: str) -> None:
    with pytest.raises(DetdiagError, match=message) as caught:
        Observation.from_dict(raw, path="f.jsonl", line=7)
    assert str(caught.value).startswith("f.jsonl:7: ")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    for raw in (value, {"id": "o", "output": value}, {"id": "o", "routing": [value]}):
        try:
            json.dumps(Observation.from_dict(raw).to_dict())
        except DetdiagError:
            pass
