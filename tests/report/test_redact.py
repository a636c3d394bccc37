"""No renderer may print what redaction promises to remove."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from typing import Any

import pytest

from detdiag.errors import DetdiagError
from detdiag.report import KINDS, render
from detdiag.report.redact import placeholder, redact, redactor_for
from tests.report.samples import NAMES, sample

PROMPT = "Please summarise the merger between Acme-Zephyr and Quillfeather before Tuesday."
OUTPUT_A = "Quillfeather will be absorbed by the buyer on Monday at noon."
OUTPUT_B = "Quillfeather will be absorbed by the seller on Monday at noon."
SECRETS = [
    "Acme-Zephyr",
    "Quillfeather",
    "absorbed by the buyer",
    "before Tuesday",
    "merger between",
]
NAMES_GONE = ["customer-4711", "/srv/private/models/", "secret-model", "10.1.2.3", "alice"]


def private_report() -> dict[str, Any]:
    report = sample("batch-confirmed")
    report["target"] = {
        "name": "secret-model", "path": "/srv/private/models/secret-model", "host": "10.1.2.3",
        "user": "alice", "device": "cpu", "prompts": [{"id": "customer-4711", "text": PROMPT}],
    }  # fmt: skip
    report["verdict"]["sentence"] = f"Likeliest layer: batch (confirmed): {PROMPT[:40]} differs."
    report["verdict"]["first_divergence"]["query"] = "customer-4711"
    report["verdict"]["would_change"] = f"Another answer to customer-4711 than '{OUTPUT_A[:30]}'."
    batch = next(layer for layer in report["layers"] if layer["layer"] == "batch")
    batch["findings"][0]["summary"] = f"The prompt “{PROMPT}” gives another answer."
    batch["findings"][0]["where"] = "/srv/private/models/secret-model/config.json:3"
    batch["findings"][0]["evidence"][0]["conditions"] = [OUTPUT_A[:28]]
    data = report["data"]
    data["reproduce"]["command"] = (
        f"detdiag run --model /srv/private/models/secret-model --prompt '{PROMPT}' --seed 0"
    )
    data["outputs"] = [
        {"query": "customer-4711",
         "a": {"condition": "batch_size=1", "text": OUTPUT_A, "token_ids": [11, 12, 13]},
         "b": {"condition": "batch_size=8", "text": OUTPUT_B, "token_ids": [11, 99, 13]},
         "first_diff_token": 1},
    ]  # fmt: skip
    data["input_diff"] = {
        "left": "prompt a", "right": "prompt b", "notes": [f"equal but for {PROMPT[8:30]}"],
        "hunks": [{"offset_a": 8, "offset_b": 8, "a": PROMPT[7:40], "b": "", "names": []}],
    }  # fmt: skip
    data["heatmap"]["tokens"] = PROMPT.split(" ")
    for row, word in zip(report["margins"], OUTPUT_A.split(" "), strict=False):
        row["token"] = f" {word}"
    return report


def everything(report: dict[str, Any], level: str) -> str:
    """All formats and styles in one text, the embedded evidence unpacked."""
    texts = [render(report, kind, redact=level, plotly="none") for kind in KINDS]
    texts += [render(report, "md", redact=level, style=s) for s in ("postmortem", "checklist")]
    texts += [render(report, "html", redact=level, plotly="none", lang="zh")]
    for page in list(texts):
        for packed in re.findall(r"data:application/gzip;base64,([A-Za-z0-9+/=]+)", page):
            texts.append(gzip.decompress(base64.b64decode(packed)).decode())
    return "\n".join(texts)


def test_the_control_the_secrets_are_there_without_redaction() -> None:
    shown = everything(private_report(), "none")
    for secret in [*SECRETS, *NAMES_GONE]:
        assert secret in shown


@pytest.mark.parametrize("level", ["prompts", "all"])
def test_no_secret_in_any_format(level: str) -> None:
    shown = everything(private_report(), level)
    for secret in SECRETS:
        assert secret not in shown
    for word in PROMPT.split(" "):
        if len(word) > 8:
            assert word not in shown


def test_all_removes_names_paths_and_query_ids_too() -> None:
    shown = everything(private_report(), "all")
    for name in NAMES_GONE:
        assert name not in shown


def test_prompts_keeps_token_ids_names_and_says_which_text_it_was() -> None:
    hidden = redact(private_report(), "prompts")
    side = hidden["data"]["outputs"][0]["a"]
    digest = hashlib.sha256(OUTPUT_A.encode()).hexdigest()
    assert side["text"] == f"[redacted sha256:{digest[:16]} {len(OUTPUT_A)} chars]"
    assert side["token_ids"] == [11, 12, 13]
    assert hidden["target"]["name"] == "secret-model"
    assert hidden["method"]["redact"] == "prompts"
    assert hidden["verdict"]["layer"] == "batch"
    assert hidden["data"]["ladder"] == private_report()["data"]["ladder"]


@pytest.mark.parametrize("level", ["prompts", "all"])
def test_redacting_again_changes_nothing(level: str) -> None:
    once = redact(private_report(), level)
    assert redact(once, level) == once


@pytest.mark.parametrize("level", ["prompts", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_every_sample_still_renders_and_keeps_its_numbers(name: str, level: str) -> None:
    report = sample(name)
    hidden = redact(report, level)
    assert [r["layer"] for r in hidden["layers"]] == [r["layer"] for r in report["layers"]]
    assert [m["margin_logits"] for m in hidden.get("margins", [])] == [
        m["margin_logits"] for m in report.get("margins", [])
    ]
    for kind in KINDS:
        render(report, kind, redact=level, plotly="none")


@pytest.mark.parametrize("level", ["prompts", "all"])
def test_the_page_says_its_level(level: str) -> None:
    page = render(private_report(), "html", redact=level, plotly="none")
    assert f"Redacted ({level})" in page
    assert "Redacted (" not in render(private_report(), "html", plotly="none")


def test_record_lines_share_their_secrets() -> None:
    lines: list[dict[str, Any]] = [
        {"type": "observation", "id": "o1", "query": "customer-4711",
         "request": {"messages": [{"role": "user", "content": PROMPT}]},
         "output": {"text": OUTPUT_A, "token_ids": [1],
                    "positions": [{"token": "Quill", "id": 1, "logprob": -0.5}]}},
        {"type": "finding", "layer": "input", "rule": "input.bytes-differ",
         "summary": f"at byte 7: {PROMPT[7:30]!r}"},
    ]  # fmt: skip
    hidden = [redactor_for(lines, "prompts")(line) for line in lines]
    shown = json.dumps(hidden)
    for secret in [*SECRETS, "Quill", "the merger"]:
        assert secret not in shown
    assert hidden[0]["request"]["messages"][0] == {"role": "user", "content": placeholder(PROMPT)}
    assert hidden[0]["output"]["positions"] == [{"id": 1, "logprob": -0.5}]
    assert hidden[0]["query"] == "customer-4711"


@pytest.mark.parametrize("level", ["prompts", "all"])
def test_a_text_that_is_only_in_a_hunk_of_a_finding_goes_too(level: str) -> None:
    report = sample("version-tokenizer")
    del report["data"]["input_diff"]
    hunk = {"offset_a": 0, "offset_b": 0, "a": "hunter2 is mine", "b": "", "names": ["digits"]}
    report["layers"][1]["findings"] = [
        {
            "rule": "input.bytes-differ",
            "outcome": "failed",
            "severity": "high",
            "summary": "first at byte 0: hunter2 is mine",
            "evidence": [],
            "data": {"input_diff": {"left": "a", "right": "b", "hunks": [hunk], "notes": []}},
        }
    ]
    assert "hunter2" in everything(report, "none")
    assert "hunter2" not in everything(report, level)


def test_unknown_level_is_refused() -> None:
    with pytest.raises(DetdiagError, match="unknown redaction level"):
        redact(sample("minimal"), "some")
