"""Markdown read by another library: what people paste must stay what we wrote."""

from __future__ import annotations

from typing import Any

import pytest
from markdown_it import MarkdownIt

from detdiag.errors import DetdiagError
from detdiag.report import render
from detdiag.report.markdown import STYLES, code_block, code_span, md
from tests.report.samples import NAMES, sample

PARSER = MarkdownIt("gfm-like", {"html": True, "linkify": False})


def kinds(text: str) -> set[str]:
    out: set[str] = set()
    for token in PARSER.parse(text):
        out.add(token.type)
        out.update(child.type for child in token.children or [])
    return out


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", NAMES)
def test_no_text_becomes_markup(name: str, lang: str, style: str) -> None:
    text = render(sample(name), "md", lang=lang, style=style)
    found = kinds(text)
    assert not found & {"html_inline", "html_block", "link_open", "image", "em_open", "s_open"}
    assert not set("\x1b\u202e\u200b\u2028\x00\r") & set(text)
    assert text.endswith("\n") and "None" not in text


@pytest.mark.parametrize(
    "raw",
    ["*a*", "_a_", "`a`", "[x](y)", "# a", "- a", "1. a", "> a", "<b>a</b>", "a|b", "~~a~~",
     "![i](u)", "https://a.b", "a  \nb", "+ a", "$x$", "\\", "&lt;", "me@x.org"],
)  # fmt: skip
def test_any_text_reads_back_as_itself(raw: str) -> None:
    tokens = PARSER.parse(f"before {md(raw)}")
    inline = [c for t in tokens for c in t.children or []]
    assert {c.type for c in inline} <= {"text", "text_special"}
    expected = raw.replace("\n", "\\n")
    assert "".join(c.content for c in inline) == f"before {expected}"


def test_fences_are_longer_than_what_they_hold() -> None:
    tokens = PARSER.parse(code_block("a\n```\nb ```` c"))
    assert [t.type for t in tokens] == ["fence"]
    assert tokens[0].content == "a\n```\nb ```` c\n"
    inline: Any = PARSER.parse(code_span("a `b`` c`"))[1].children
    assert [(c.type, c.content) for c in inline] == [("code_inline", "a `b`` c`")]


def test_the_postmortem_fills_what_the_record_knows_and_leaves_todo() -> None:
    text = render(sample("batch-confirmed"), "md", style="postmortem")
    order = ["Summary", "Impact", "Root cause", "Trigger", "Detection", "Timeline", "Action items",
             "Lessons", "Supporting evidence"]  # fmt: skip
    places = [text.index(f"## {title}\n") for title in order]
    assert places == sorted(places)
    section = dict(
        zip(
            order,
            [text[a:b] for a, b in zip(places, [*places[1:], len(text)], strict=True)],
            strict=True,
        )
    )
    assert (
        "TODO" in section["Impact"] and "TODO" in section["Lessons"] and "Authors: **TODO**" in text
    )
    assert "batch.size-sensitive" in section["Root cause"]
    assert "TODO" in section["Trigger"], "no baseline was compared: the trigger is not invented"
    assert "240 observations" in section["Detection"]
    assert "Serve this prompt alone" in section["Action items"]
    for kind in ("mitigate", "prevent", "detect"):
        assert f"| {kind} |" in section["Action items"]
    assert "20/20 [84–100 %]" in section["Supporting evidence"]
    assert "4c0d" * 16 in section["Supporting evidence"]


def test_the_trigger_is_the_fingerprint_diff_and_apart_from_the_root_cause() -> None:
    text = render(sample("version-tokenizer"), "md", style="postmortem")
    trigger = text[text.index("## Trigger") : text.index("## Detection")]
    assert "aaaa1111" in trigger and "TODO" not in trigger


def test_an_open_case_claims_no_root_cause() -> None:
    text = render(sample("inconclusive-confounded"), "md", style="postmortem")
    assert "No root cause is established yet." in text
    assert "| prevent |" not in text


def test_the_checklist_ends_in_a_decision() -> None:
    for name, decision in (
        ("batch-confirmed", "NO-GO"),
        ("clean", "INCONCLUSIVE"),
        ("hostile", "NO-GO"),
    ):
        text = render(sample(name), "md", style="checklist")
        assert f"**{decision}**" in text
    report = sample("clean")
    for layer in report["layers"]:
        layer.update(outcome="passed", attribution="ruled_out")
    assert "**GO**" in render(report, "md", style="checklist")


def test_a_gate_of_detdiag_check_is_shown_as_it_is() -> None:
    report = sample("clean")
    waiver = {"reason": "vendor", "owner": "ops", "expires": "2027-01-01", "expired": True}
    report["gate"] = {
        "profile": "release", "decision": "NO-GO", "why": ["a waiver has expired"],
        "items": [{"item": "baseline", "required": True, "outcome": "failed",
                   "evidence": "23 fields", "waiver": waiver}],
    }  # fmt: skip
    text = render(report, "md", style="checklist")
    assert "**NO-GO**: a waiver has expired" in text
    assert "vendor (owner ops, until 2027-01-01) (expired)" in text
    assert "release" in text


def test_a_postmortem_of_files_alone_claims_no_reproduction() -> None:
    finding = {"rule": "config.sampling-still-on", "outcome": "failed", "where": "serve/a.json:3",
               "summary": "the request itself asks for sampling"}  # fmt: skip
    layers = [{"layer": "config", "attribution": "cause", "findings": [finding]}]
    report = {"layers": layers, "verdict": {"status": "attributed", "layer": "config"}}
    text = render({**report, "observations": 0}, "md", style="postmortem")
    assert "no run was observed" in text and "Reproduced" not in text
    assert text.rstrip().endswith("- config: `serve/a.json:3` the request itself asks for sampling")
    assert "Reproduced" in render({**report, "observations": 4}, "md", style="postmortem")


def test_unknown_style_names_the_known_ones() -> None:
    with pytest.raises(DetdiagError, match="postmortem"):
        render(sample("minimal"), "md", style="essay")
