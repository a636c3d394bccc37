from __future__ import annotations

import json
from typing import Any

from detdiag.evidence.observation import Observation
from detdiag.inputs.findings import prompt_finding, request_findings
from detdiag.inputs.observed import observation_findings, static_input_findings


def seen(
    number: int, content: str, text: str, ids: tuple[int, ...] | None = None, **factors: Any
) -> Observation:
    return Observation.from_dict(
        {
            "id": f"o{number}",
            "query": "q",
            "request": {"messages": [{"role": "user", "content": content}], "temperature": 0},
            "prompt_token_ids": ids,
            "output": {"text": text},
            "factors": factors,
        }
    )


def only(observations: list[Observation]) -> Any:
    (finding,) = observation_findings(observations)
    return finding


def test_a_newline_that_goes_with_the_outcome_is_a_mechanism() -> None:
    finding = only([seen(i, "x\n" * (i % 2) + "y", f"t{i % 2}") for i in range(6)])
    assert finding.rule == "input.bytes-differ" and finding.mechanism
    assert [(e.value, e.n) for e in finding.evidence] == [(9, 9), (0, 6)]
    assert "repeat" in finding.explains


def test_bytes_that_differ_without_another_output_are_no_mechanism() -> None:
    finding = only([seen(i, f"x{' ' * (i % 2)}", "same") for i in range(6)])
    assert finding.outcome == "failed" and not finding.mechanism


def test_noise_within_equal_inputs_is_no_mechanism() -> None:
    finding = only([seen(i, f"x{' ' * (i % 2)}", f"t{i}") for i in range(6)])
    assert not finding.mechanism


def test_without_a_control_nothing_is_claimed() -> None:
    finding = only([seen(i, f"at 09:15:0{i}", f"t{i}") for i in range(4)])
    assert finding.rule == "input.volatile-content" and not finding.mechanism


def test_a_batch_effect_inside_equal_bytes_is_matched_away() -> None:
    rows = [
        seen(i, f"x{' ' * (i % 2)}", f"t{i % 2}{size}", batch_size=size)
        for i in range(6)
        for size in (1, 8)
    ]
    finding = only(rows)
    assert finding.mechanism and finding.evidence[1].value == 0


def test_doubled_bos_and_a_tokenizer_that_changed_with_the_library() -> None:
    bos = only(
        [seen(i, "x", f"t{i % 2}", (2,) * (1 + i % 2) + (7,), client=i % 2) for i in range(6)]
    )
    assert bos.rule == "input.doubled-bos" and bos.mechanism and "client" in bos.explains
    versions = [{"transformers": "4.57.1"}, {"transformers": "5.3.0"}]
    rows = [
        seen(i, "x", f"t{i % 2}", (2, 7 + i % 2), library_versions=versions[i % 2])
        for i in range(6)
    ]
    finding = only(rows)
    assert (finding.layer, finding.rule) == ("version", "version.tokenisation-changed")
    assert finding.explains == ("library_versions",) and finding.mechanism


def test_equal_inputs_yield_nothing() -> None:
    assert observation_findings([seen(i, "x", f"t{i}", (1, 2)) for i in range(4)]) == []


def test_request_pairs_go_to_the_layer_of_the_field() -> None:
    base = {"model": "m", "prompt": "p", "temperature": 0}

    def layers(**change: Any) -> list[tuple[str, str]]:
        pair = [json.dumps(body).encode() for body in (base, {**base, **change})]
        return [(f.layer, f.outcome) for f in request_findings(*pair)]

    assert layers(user="u") == [("input", "passed")]
    assert layers(prompt="q") == [("input", "failed")]
    assert layers(temperature=1) == [("config", "failed")]
    assert layers(model="n") == [("version", "failed")]
    assert layers(model="n", prompt="q") == [("version", "failed"), ("input", "failed")]


def test_a_case_folder_of_files() -> None:
    findings = static_input_findings(prompts=(b"a", b"\xef\xbb\xbfa"), requests=(b"{}", b"{ }"))
    assert [f.outcome for f in findings] == ["failed", "passed"]
    assert findings[0].data["input_diff"]["equal_after"] == ["byte-order mark removed"]
    assert prompt_finding(b"a", b"a").outcome == "passed"
