"""The incident command on planted logs: groups by brute force, causes by name, healthy controls."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from detdiag.errors import DetdiagError
from detdiag.incidents.analyse import mine
from detdiag.incidents.model import IncidentReport
from tests.incidents.logs import Row, brute_groups, planted, row, write

SEEDS = range(6)


def outcomes(report: IncidentReport) -> dict[str, str]:
    return {t.factor: t.outcome for t in report.factors}


def by_replica(prompt: int, c: Row) -> str:
    return f"answer {prompt}" + (" (west)" if c["replica"] == "west" and prompt % 2 else "")


def by_cache(prompt: int, c: Row) -> str:
    return f"answer {prompt}" + (" warm" if c["cached"] else "")


def by_drift(prompt: int, c: Row) -> str:
    return f"answer {prompt}" + (" new" if c["progress"] > 0.6 else "")


def by_chance(prompt: int, c: Row) -> str:
    return f"answer {prompt} {c['rng'].randrange(3)}"


def healthy(prompt: int, c: Row) -> str:
    return f"answer {prompt}"


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_counts_and_ranks_against_brute_force(tmp_path: Path, seed: int) -> None:
    rows = planted(by_chance, seed=seed, prompts=15, repeats=5)
    report = mine([write(tmp_path / "log.jsonl", rows)])
    groups = brute_groups(rows)
    incidents = {p: c for p, c in groups.items() if len(c) > 1}
    assert report.requests == len(groups) and report.records == len(rows)
    assert report.found == len(incidents)
    seen = {i.prompt: i for i in report.incidents}
    assert set(seen) == set(incidents)
    for prompt, counter in incidents.items():
        one = seen[prompt]
        n = sum(counter.values())
        assert (one.records, one.distinct) == (n, len(counter))
        assert one.deviating == n - max(counter.values())
        pairs = sum(c * (c - 1) for c in counter.values()) / (n * (n - 1))
        assert one.agreement == pytest.approx(pairs)
        assert {v.text: v.count for v in one.variants} == dict(counter)
        assert one.variants[0].count == max(counter.values())
    keys = [(-i.deviating, -i.distinct, -i.records) for i in report.incidents]
    assert keys == sorted(keys)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("text_of", "factor"),
    [(by_replica, "replica"), (by_cache, "cached_tokens"), (by_drift, "time")],
)
def test_a_planted_condition_is_named_and_nothing_else(
    tmp_path: Path, text_of: Any, factor: str, seed: int
) -> None:
    report = mine([write(tmp_path / "log.jsonl", planted(text_of, seed=seed))])
    found = outcomes(report)
    assert found.pop(factor) == "associated"
    assert "associated" not in found.values() and "confounded" not in found.values()
    assert factor in report.sentence
    assert all(i.factor == factor for i in report.incidents)


@pytest.mark.parametrize("seed", range(12))
def test_chance_names_no_condition(tmp_path: Path, seed: int) -> None:
    report = mine([write(tmp_path / "log.jsonl", planted(by_chance, seed=seed))])
    assert report.found == 20
    assert set(outcomes(report).values()) <= {"not seen", "not recorded", "too little"}
    assert "no recorded condition" in report.sentence


def test_a_healthy_log_has_no_incident(tmp_path: Path) -> None:
    report = mine([write(tmp_path / "log.jsonl", planted(healthy))])
    assert report.found == 0 and report.incidents == ()
    assert report.sentence == (
        "No difference seen: 20 repeated requests, 160 records, one answer each."
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_conditions_that_move_together_are_not_told_apart(tmp_path: Path, seed: int) -> None:
    """The cache is warm exactly on one replica: two layers, one movement."""

    def text_of(prompt: int, c: Row) -> str:
        c["cached"] = 64 if c["replica"] == "west" else 0
        return by_replica(prompt, c)

    report = mine([write(tmp_path / "log.jsonl", planted(text_of, seed=seed, prompts=30))])
    found = outcomes(report)
    assert found["replica"] == found["cached_tokens"] == "confounded"
    assert "cannot tell apart" in report.sentence


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_is_not_named_beside_its_leader(tmp_path: Path, seed: int) -> None:
    """The cache is mostly warm on one replica, but only the replica decides."""

    def text_of(prompt: int, c: Row) -> str:
        warm = c["rng"].random() < (0.85 if c["replica"] == "west" else 0.15)
        c["cached"] = 64 if warm else 0
        return by_replica(prompt, c)

    rows = planted(text_of, seed=seed, prompts=60, repeats=12)
    found = outcomes(mine([write(tmp_path / "log.jsonl", rows)]))
    assert found["replica"] == "associated"
    assert found["cached_tokens"] != "associated"


def test_fingerprints_that_follow_the_replica_are_one_name(tmp_path: Path) -> None:
    rows = planted(by_replica)
    for one in rows:
        one["response"]["system_fingerprint"] = f"fp_{one['replica']}"
    report = mine([write(tmp_path / "log.jsonl", rows)])
    test = next(t for t in report.factors if t.factor == "replica")
    assert test.outcome == "associated" and test.same_as == ("system_fingerprint",)
    assert all(t.factor != "system_fingerprint" for t in report.factors)


@pytest.mark.parametrize("seed", SEEDS)
def test_overlap_is_named_when_load_decides(tmp_path: Path, seed: int) -> None:
    rows = planted(healthy, seed=seed)
    starts = sorted(one["start_time"] for one in rows)
    for one in rows:
        start = one["start_time"]
        # Half a second long: a neighbour within half a second means two in flight.
        near = sum(abs(s - start) < 0.5 for s in starts)
        if near > 1:
            one["response"]["choices"][0]["message"]["content"] += " under load"
    for one in rows:
        del one["replica"]
    report = mine([write(tmp_path / "log.jsonl", rows)])
    assert outcomes(report)["concurrency"] == "associated"


def test_no_p_value_below_five_groups_of_four(tmp_path: Path) -> None:
    few = planted(by_replica, prompts=8, repeats=8)  # four prompts can differ
    report = mine([write(tmp_path / "few.jsonl", few)])
    assert report.found == 4
    assert all(t.p is None and t.p_holm is None for t in report.factors)
    assert "too few repeats" in report.sentence
    short = planted(by_replica, prompts=40, repeats=3)
    report = mine([write(tmp_path / "short.jsonl", short)])
    assert report.found > 5 and all(t.p is None for t in report.factors)


def test_sampling_requests_are_set_apart(tmp_path: Path) -> None:
    rows = planted(by_replica, temperature=0.7)
    report = mine([write(tmp_path / "log.jsonl", rows)])
    assert all(i.sampling == "on" and i.factor == "temperature" for i in report.incidents)
    assert all(t.p is None for t in report.factors)
    rows = planted(by_chance, temperature=None)
    report = mine([write(tmp_path / "unset.jsonl", rows)])
    assert all("server's default may sample" in i.attribution for i in report.incidents)


def test_broken_lines_are_counted_with_their_numbers(tmp_path: Path) -> None:
    rows = planted(by_replica)
    text = write(tmp_path / "log.jsonl", rows).read_text().splitlines()
    text[3] = text[3][:50]
    text[10] = ""
    text[20] = "not json"
    text[30] = '{"other": 1}'
    path = tmp_path / "broken.jsonl"
    path.write_text("\n".join(text))
    report = mine([path])
    file = report.files[0]
    assert [line for line, _ in file.broken] == [4, 21, 31] and file.broken_count == 3
    assert report.records == len(rows) - 4
    kept = [r for i, r in enumerate(rows) if i not in (3, 10, 20, 30)]
    assert report.found == sum(len(c) > 1 for c in brute_groups(kept).values())


@pytest.mark.parametrize("jobs", [1, 2])
def test_blocks_and_processes_change_nothing(
    tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = planted(by_replica)
    path = write(tmp_path / "log.jsonl", rows)
    path.write_text(path.read_text().replace('"r77"', '"r77'))
    whole = mine([path], jobs=1)
    monkeypatch.setattr("detdiag.incidents.mine.POOL_BYTES", 0)
    monkeypatch.setattr("detdiag.incidents.stream.blocks.__defaults__", (4000,))
    parts = mine([path], jobs=jobs)
    assert parts == whole
    assert [line for line, _ in parts.files[0].broken] == [78]


def test_compressed_logs_give_the_same_report(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", planted(by_replica))
    plain = mine([path]).to_dict()
    (tmp_path / "a.gz").write_bytes(gzip.compress(path.read_bytes()))
    raw = path.read_bytes()
    frames = [zstandard.ZstdCompressor().compress(part) for part in (raw[:9000], raw[9000:])]
    (tmp_path / "a.zst").write_bytes(b"".join(frames))
    for name in ("a.gz", "a.zst"):
        other = json.loads(
            json.dumps(mine([tmp_path / name]).to_dict()).replace(f"/{name}", "/log.jsonl")
        )
        assert other == json.loads(json.dumps(plain))


def test_a_truncated_gzip_keeps_what_was_read(tmp_path: Path) -> None:
    rows = planted(by_replica, prompts=400)
    raw = gzip.compress(write(tmp_path / "log.jsonl", rows).read_bytes())
    path = tmp_path / "cut.gz"
    path.write_bytes(raw[: len(raw) * 3 // 4])
    report = mine([path])
    assert report.files[0].damage is not None
    assert 0 < report.records < len(rows)


def test_several_logs_are_one_population(tmp_path: Path) -> None:
    rows = planted(by_replica)
    halves = [write(tmp_path / f"{i}.jsonl", rows[i::2]) for i in range(2)]
    together = mine(halves)
    alone = mine([write(tmp_path / "all.jsonl", rows)])
    assert together.found == alone.found and together.deviating == alone.deviating
    assert {i.digest for i in together.incidents} == {i.digest for i in alone.incidents}


def test_a_reply_logged_twice_counts_once(tmp_path: Path) -> None:
    rows = planted(by_replica)
    report = mine([write(tmp_path / "log.jsonl", [*rows, *rows[:7]])])
    assert report.duplicates == 7 and report.records == len(rows)


@pytest.mark.parametrize(
    "name",
    ["har/session.har", "litellm/payloads.jsonl", "openai_batch/output.jsonl", "vcr/cassette.yaml"],
)
def test_other_formats_are_mined_too(name: str) -> None:
    path = Path(__file__).parents[2] / "fixtures" / "evidence" / name
    report = mine([path])
    assert report.found == 3  # replica B has other words for three of six questions
    assert {i.distinct for i in report.incidents} == {2}
    assert all(i.variants[1].text for i in report.incidents)


def test_unreadable_and_unknown_logs(tmp_path: Path) -> None:
    with pytest.raises(DetdiagError, match="cannot read"):
        mine([tmp_path / "missing.jsonl"])
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    with pytest.raises(DetdiagError, match="no log format recognised: JSON lines, 2 records"):
        mine([path])


def test_hostile_rows_do_not_stop_the_rest(tmp_path: Path) -> None:
    deep = "[" * 5000 + "]" * 5000
    lines = [json.dumps(row(i, "q", "ab"[i % 2])) for i in range(8)]
    lines += ['{"request": ' + deep + ', "response": {}}', '{"request": 1e999, "response": NaN}']
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines))
    report = mine([path])
    assert report.found == 1 and report.incidents[0].records == 8


def test_errors_and_cut_streams_are_no_other_answer(tmp_path: Path) -> None:
    rows = [row(i, f"p{i % 6}", f"a{i % 6}", replica="ab"[i % 2]) for i in range(120)]
    for i, one in enumerate(rows):
        if i % 8 == 1:
            one["error"], one["response"]["choices"][0]["message"]["content"] = "timed out", ""
        elif i % 8 == 3:
            chunk = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
            one["response"] = f"data: {json.dumps(chunk)}\n\n"
        else:
            one["error"] = None
    report = mine([write(tmp_path / "log.jsonl", rows)])
    assert report.found == 0 and report.records == 90
    left = report.to_dict()["files"][0]["left_out"]
    assert left == {
        "the record reports an error": 15,
        "the stream broke off before its end": 15,
    }


def test_a_log_without_incidents_does_not_deny_its_channels(tmp_path: Path) -> None:
    rows = planted(healthy, seed=1)
    report = mine([write(tmp_path / "log.jsonl", rows)])
    assert set(outcomes(report).values()) == {"too little"}
    assert all("no request got another answer" in t.note for t in report.factors)
