"""The pytest plugin in people's own suites, and the comparison under it."""

from __future__ import annotations

import math
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detdiag.gate.repeats import (
    BoundOutOfReach,
    difference_lines,
    failure_text,
    identity,
    make_plan,
    repeat,
)
from detdiag.verdict.stats import wilson
from tests.gate.build import ROOT
from tests.stub_server import Behaviour, StubServer

pytest_plugins = "pytester"
LOAD = ("-p", "no:detdiag", "-p", "detdiag.pytest_plugin", "-p", "no:cacheprovider")


def run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest(*LOAD, "--strict-markers")


def test_equal_results_pass_and_say_their_bound(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        def test_it(assert_repeats, record_property):
            calls = []
            result = assert_repeats(lambda: calls.append(1) or "same", bound=0.05)
            assert len(calls) == result.runs == 59
            assert result.bound <= 0.05 and result.equal
        """,
    )
    done.assert_outcomes(passed=1)


def test_a_difference_fails_with_counts_place_and_bound(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        r"""
        import itertools

        def test_it(assert_repeats):
            numbers = itertools.count()
            def reply():
                n = next(numbers)
                return {"text": "the keeper wrote " + ("\x1b[31mb" if n % 20 == 7 else "a")}
            assert_repeats(reply, bound=0.05)
        """,
    )
    done.assert_outcomes(failed=1)
    low, high = wilson(3, 59) or (0.0, 0.0)
    done.stdout.fnmatch_lines(
        [
            f"reply does not repeat: 3 of 59 runs differ from the commonest result "
            f"[[]{100 * low:.2g}-{100 * high:.2g} %[]]",
            "2 distinct results, seen 56, 3 times; the first change came at run 8",
            "first difference in [[]'text'[]] at character 17 (of 18 and 23):",
            "  a: the keeper wrote ⟦a⟧",
            r"  b: the keeper wrote ⟦\x1b[[]31mb⟧",
            "asked for: a rate below 5 % at 95 % confidence (59 equal runs)",
        ]
    )
    assert "\x1b[31mb" not in done.stdout.str()


def test_a_marked_test_repeats_what_it_returns(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        import itertools, pytest
        numbers, calls = itertools.count(), []

        @pytest.mark.detdiag(runs=30)
        @pytest.mark.parametrize("x", [1, 2])
        def test_same(x, tmp_path):
            calls.append(x)
            return x

        def test_calls():
            assert calls == [1] * 30 + [2] * 30

        @pytest.mark.detdiag(runs=5)
        def test_other():
            return next(numbers)

        @pytest.mark.detdiag(runs=7)
        def test_returns_nothing(assert_repeats):
            assert assert_repeats(lambda: 1).runs == 7
            assert assert_repeats(lambda: 1, runs=3).runs == 3

        def test_plain():
            pass
        """,
    )
    done.assert_outcomes(passed=5, failed=1)
    done.stdout.fnmatch_lines(["test_other does not repeat: 4 of 5 runs differ*"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("runs=50, bound=0.05", "runs=50 cannot exclude a rate of 0.05*59 equal runs are needed*"),
        ("runs=1", "runs=1: expected a whole number of 2 or more"),
        ("bound=5", "bound=5: expected a number between 0 and 1"),
        ("run=5", "detdiag marker: run; expected runs, bound, confidence"),
        ("20", "detdiag marker: 20; expected runs, bound, confidence"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_runs(
    pytester: pytest.Pytester, marker: str, message: str
) -> None:
    source = f"""
        import pytest

        @pytest.mark.detdiag({marker})
        def test_it():
            raise SystemExit("ran")
        """
    done = run(pytester, source)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([f"*{message}"])


def test_an_exception_of_the_callable_stays_itself(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        def test_it(assert_repeats):
            assert_repeats(lambda: 1 / 0)

        def test_type(assert_repeats):
            assert_repeats(lambda: object())
        """,
    )
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["E*ZeroDivisionError*", "E*results of type object cannot be*"])


@pytest.mark.parametrize("compare", ["text", "token", "bitwise"])
def test_an_endpoint_that_repeats_and_one_that_samples(
    pytester: pytest.Pytester, compare: str
) -> None:
    source = """
        def test_it(assert_endpoint_repeats):
            result = assert_endpoint_repeats(
                {url!r}, "say hello", model="stub", runs=12, max_tokens=6, compare={compare!r})
            assert result.runs == 12
        """
    with StubServer(Behaviour()) as server:
        run(pytester, source.format(url=server.url, compare=compare)).assert_outcomes(passed=1)
        bodies = [body for path, body, _ in server.requests if "chat" in path]
        assert len(bodies) >= 12 and all(b["temperature"] == 0 for b in bodies)
    with StubServer(Behaviour(temperature=1.0)) as server:
        done = run(pytester, source.format(url=server.url, compare=compare))
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["stub at http*does not repeat: * of 12 runs differ*"])


def test_a_server_that_is_not_there_is_one_clear_error(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        def test_it(assert_endpoint_repeats):
            assert_endpoint_repeats("http://127.0.0.1:9", "x", model="m", runs=2)
        """,
    )
    done.assert_outcomes(failed=1)
    assert "EndpointError" in done.stdout.str()


def test_the_plugin_is_declared_and_costs_nothing_at_start() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"detdiag": "detdiag.pytest_plugin"}
    program = (
        "import sys, pytest; before = set(sys.modules)\nimport detdiag.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=ROOT,
    )  # fmt: skip
    assert eval(done.stdout) == ["detdiag", "detdiag.pytest_plugin"]


# --- the comparison ------------------------------------------------------------------------


@dataclass
class Reply:
    text: str
    score: float


DISTINCT: list[Any] = [
    None, True, 1, 1.0, "1", b"1", 0.0, -0.0, float("nan"), [1], [1, 2], [[1], 2], {"a": 1},
    {"a": 2}, {"b": 1}, {1}, frozenset({1, 2}), Reply("a", 0.1), Reply("a", 0.2), "", [], {}, 1j,
    "a", "b", "\ud800", ["ab"], ["a", "b"],
]  # fmt: skip


def test_other_values_are_other_and_equal_bits_are_equal() -> None:
    for i, a in enumerate(DISTINCT):
        for j, b in enumerate(DISTINCT):
            assert (identity(a) == identity(b)) is (i == j), (a, b)
    assert identity(float("nan")) == identity(math.nan)
    assert identity((1, 2)) == identity([1, 2])
    assert identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool"])
def test_tensors_and_arrays_are_compared_by_their_bits(dtype: str) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    a = torch.zeros(3, 4, dtype=getattr(torch, dtype))
    b = a.clone()
    assert identity(a) == identity(b) != identity(a.reshape(4, 3))
    b.view(torch.uint8)[-1, -1] ^= 1
    assert identity(a) != identity(b)
    assert identity(a.T.contiguous().T) == identity(a)
    assert identity(np.zeros(3)) != identity(np.zeros(3, np.float32))
    assert identity(np.array([0.0])) != identity(np.array([-0.0]))
    assert identity(torch.zeros(0)) == identity(torch.zeros(0))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("aab"), min_size=2, max_size=30))
def test_counts_by_brute_force(results: list[str]) -> None:
    feed = iter(results)
    found = repeat(lambda: next(feed), make_plan(runs=len(results)))
    modal = max(results.count(x) for x in set(results))
    assert found.runs == len(results) and found.differing == len(results) - modal
    assert sum(found.counts) == len(results) and found.equal is (len(set(results)) == 1)
    change = next((i for i, x in enumerate(results, start=1) if x != results[0]), None)
    assert found.first_change == change
    if not found.equal:
        text = failure_text(found, make_plan(runs=len(results)), "it")
        assert f"{found.differing} of {len(results)} runs" in text


def test_stopping_at_the_first_change_and_reducing_by_key() -> None:
    feed = iter([1, 1, 2, 3, 4, 5])
    found = repeat(lambda: next(feed), make_plan(runs=6), stop_at_first=True)
    assert (found.runs, found.counts) == (3, (2, 1))
    feed = iter(range(0, 60, 10))
    assert repeat(lambda: next(feed), make_plan(runs=6), key=lambda n: n % 10).equal


def test_the_bound_and_the_runs_it_needs() -> None:
    for bound in (0.2, 0.05, 0.01):
        plan = make_plan(bound=bound)
        assert (1 - bound) ** plan.runs <= 0.05 < (1 - bound) ** (plan.runs - 1)
        with pytest.raises(BoundOutOfReach):
            make_plan(runs=plan.runs - 1, bound=bound)
    assert make_plan().runs == 20


def test_the_first_difference_is_found_inside() -> None:
    lines = difference_lines({"a": [1, {"b": "xyz"}]}, {"a": [1, {"b": "xYz"}]})
    assert lines[0] == "first difference in ['a'][1]['b'] at character 1 (of 3 and 3):"
    assert lines[1:] == ["  a: x⟦yz⟧", "  b: x⟦Yz⟧"]
    assert difference_lines([1], [1, 2])[0] == "first difference in length:"
