"""The live config probe: planted sampling is named and proven, a greedy call passes."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from detdiag.demo import demo_path  # noqa: E402
from detdiag.evidence.case import ProbeStatus  # noqa: E402
from detdiag.evidence.finding import Finding  # noqa: E402
from detdiag.probes.config import ConfigProbe  # noqa: E402
from detdiag.probes.interface import Plan, ProbeContext  # noqa: E402
from detdiag.targets.local import LocalTarget, load_local  # noqa: E402


@pytest.fixture(scope="module")
def target() -> LocalTarget:
    torch.set_num_threads(1)
    return load_local(demo_path("dense"), device="cpu")


def probe(target: LocalTarget, **call: Any) -> tuple[list[Finding], list[Any]]:
    target.generate_kwargs = call
    plan = Plan(generate_kwargs=call, max_new_tokens=6)
    events = list(ConfigProbe().run(ProbeContext(target, plan, time.monotonic() + 60)))
    assert isinstance(events[-1], ProbeStatus) and events[-1].state == "done"
    return [e for e in events if isinstance(e, Finding)], events


def test_a_plain_greedy_call_passes(target: LocalTarget) -> None:
    findings, events = probe(target)
    assert [(f.outcome, f.kind) for f in findings] == [("passed", "ok")]
    assert any(isinstance(e, tuple) and e[0] == "effective_params" for e in events)


def test_sampling_in_the_call_is_named_and_proven(target: LocalTarget) -> None:
    findings, _ = probe(target, do_sample=True, temperature=2.0)
    main = next(f for f in findings if f.kind == "sampling_still_on")
    assert (main.outcome, main.rule, main.proven) == ("failed", "config.sampling-still-on", True)
    assert "set by the call" in main.summary
    greedy = next(e for e in main.evidence if "do_sample=False" in e.metric)
    assert greedy.value == 1


def test_sampling_in_the_model_file_is_named(target: LocalTarget) -> None:
    shipped = target.model.generation_config
    shipped.do_sample, before = True, shipped.do_sample
    try:
        findings, events = probe(target)
        rows = next(e[1] for e in events if isinstance(e, tuple))
    finally:
        shipped.do_sample = before
    main = next(f for f in findings if f.kind == "sampling_still_on")
    assert "generation_config.json" in main.summary and main.outcome == "failed"
    assert (
        next(r for r in rows if r["parameter"] == "do_sample")["origin"] == "generation_config.json"
    )


def test_a_refused_temperature_is_the_librarys_own_word(target: LocalTarget) -> None:
    findings, _ = probe(target, do_sample=True, temperature=0)
    assert ("unsupported_error", "temperature") in {(f.kind, f.subject) for f in findings}
    with pytest.raises(ValueError, match="strictly positive"):
        target.generate([(1, 2)], max_new_tokens=2, do_sample=True, temperature=0)


def test_top_k_1_without_ties_does_not_accuse(target: LocalTarget) -> None:
    findings, _ = probe(target, do_sample=True, top_k=1)
    main = next(f for f in findings if f.kind == "sampling_still_on")
    assert main.outcome == "inconclusive" and not main.proven


def test_a_field_without_effect_is_told_and_not_accused(target: LocalTarget) -> None:
    findings, _ = probe(target, temperature=0.7)
    found = {(f.kind, f.subject, f.outcome) for f in findings}
    assert ("ignored_parameter", "temperature", "inconclusive") in found
    assert not any(outcome == "failed" for _, _, outcome in found)
