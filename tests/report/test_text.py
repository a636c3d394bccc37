from __future__ import annotations

import io
import re

import pytest

from detdiag.report import print_summary, render
from tests.report.samples import NAMES, sample


def summary(name: str, encoding: str = "utf-8", **options: object) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    print_summary(sample(name), file=stream, **options)  # type: ignore[arg-type]
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("name", NAMES)
def test_the_sentence_is_the_last_line_and_one_line_a_layer(name: str) -> None:
    lines = summary(name).rstrip("\n").split("\n")
    assert lines[-1].startswith(sample(name)["verdict"]["sentence"][:30])
    layers = [r["layer"] for r in sample(name)["layers"]]
    shown = [line.split()[1] for line in lines if line.startswith("  ") and len(line.split()) > 2]
    assert [layer for layer in shown if layer in layers][: len(layers)] == layers


@pytest.mark.parametrize("name", NAMES)
def test_quiet_leaves_the_sentence_only(name: str) -> None:
    assert summary(name, quiet=True).count("\n") == 1


def test_symbols_and_words_and_an_ascii_fallback() -> None:
    shown = summary("batch-confirmed")
    assert re.search(r"✗ batch +cause", shown) and re.search(r"✓ config +ruled out", shown)
    assert re.search(r"– decode +untested", shown) and re.search(r"· moe +not applicable", shown)
    plain = summary("batch-confirmed", encoding="ascii")
    assert re.search(r"x batch +cause", plain) and re.search(r"\+ config +ruled out", plain)


@pytest.mark.parametrize("name", NAMES)
def test_no_escape_sequence_or_hidden_character_reaches_the_terminal(name: str) -> None:
    for text in (render(sample(name), "text"), summary(name), summary(name, lang="zh")):
        assert not set("\x1b\u202e\u202c\u200b\u2028\x00\r") & set(text)


def test_colour_is_asked_for_and_markup_is_never_read() -> None:
    assert "\x1b[" in summary("batch-confirmed", color="always")
    assert "\x1b[" not in summary("batch-confirmed", color="never")
    report = sample("minimal")
    report["verdict"]["sentence"] = "[bold red]not markup[/] :smile:"
    assert "[bold red]not markup[/] :smile:" in render(report, "text")


def test_the_report_has_the_ladder_the_counts_and_what_to_do() -> None:
    text = render(sample("batch-confirmed"), "text")
    assert "20/20  [84–100 %]" in text
    assert "vllm serve ./smollm2 --max-num-seqs 1" in text
    assert "first divergence" in text.lower()
