"""Sentences in Chinese: every one that the code can write has a translation with its values."""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import detdiag
from detdiag.engine.case_folder import load_case
from detdiag.report import render
from detdiag.report.messages import has
from detdiag.report.phrases import (
    _FIELD,
    _LEFT_ALONE,
    SENTENCE_KEYS,
    advice,
    is_chinese,
    localised,
    phrases,
    translated,
)
from detdiag.report.safe import looks_like_command
from detdiag.rules.verdict_rules import all_texts
from detdiag.verdict import decide
from detdiag.verdict.remedy_catalogue import BLACK_BOX, WHITE_BOX
from tests.report.samples import ROOT, sample

PACKAGE = Path(detdiag.__file__).parent
RAW: dict[str, str] = json.loads((PACKAGE / "report" / "phrases.zh.json").read_text("utf-8"))
CALLS: dict[str, tuple[int, tuple[str, ...]]] = {
    "Finding": (3, ("summary",)),
    "failed_finding": (1, ("summary",)),
    "Remedy": (0, ("action", "cost", "verify")),
    "Evidence": (0, ("metric", "unit")),
    "ProbeStatus": (2, ("reason",)),
    "Next": (0, ("why",)),
    "Open": (0, ()),
}
"""Call, place of its sentence among the positional arguments, and keywords that hold one."""


def _template(node: ast.expr, value: str) -> str | None:
    """The text of a literal with ``value`` for every expression; None for anything else.

    An expression that follows another one, or stands behind a letter, is an optional part of the
    sentence: it is left out.
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    text, after_expression = "", False
    for part in node.values:
        if isinstance(part, ast.Constant):
            text, after_expression = text + str(part.value), False
        else:
            optional = after_expression or text[-1:].isalnum() or text[-1:] in (")", ".")
            text, after_expression = text + ("" if optional else value), True
    return text


def sentences() -> Iterator[tuple[str, int, list[str]]]:
    """``(file, line, forms)`` of every literal sentence in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if {"score", "incidents"} & set(path.parts):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name not in CALLS:
                continue
            place, keywords = CALLS[name]
            found = [node.args[place]] if len(node.args) > place else []
            found += [k.value for k in node.keywords if k.arg in keywords]
            for one in found:
                forms = [_template(one, value) for value in ("7", "name")]
                texts = [f for f in forms if f is not None and f.strip()]
                if texts and not all(map(looks_like_command, texts)):
                    yield str(path.relative_to(PACKAGE)), node.lineno, texts


COMPOSED = {
    "engine/walk.py": [],  # the text of an exception
    "evidence/adapters/recognise.py": [
        "notes.json: JSON, 1 record with fields 'a', 'b'; known log formats: HAR 1.2, VCR cassette",
        "notes.csv: CSV, 7 records with fields 'a', 'b' and 3 more; known log formats: HAR 1.2",
        "notes.json: JSON lines with 7 entries that are not objects; known log formats: HAR 1.2",
        "notes.txt: text that no format matches; known log formats: request/response pairs",
    ],
    "fingerprint/findings.py": [
        "the weights differ between the baseline and this run: 1 tensor of 38 changed (a.weight)",
        "the dtype differs between a.json and b.json: dtype: float32 against bfloat16",
    ],
    "inputs/findings.py": [
        "request_a.json and request_b.json carry the same request; inert differences at $.user",
        "request_a.json and request_b.json differ at $.messages[0].content (first at byte 0 (line "
        "1, column 1); U+FEFF BYTE-ORDER; equal after: byte-order mark removed)",
    ],
    "inputs/observed.py": [
        "4 queries: the same prompt as two id lists: o1 has the first id 2 twice",
        "1 query: the prompt carries content that changes from call to call (clock) at $.a",
    ],
    "moe/recorded.py": [
        "In block 2 at position 0 experts 2 and 5 change places: the scores of experts 2 and 5 are "
        "distinct in the wider format and equal after rounding to bfloat16. It does not go with "
        "the output: 1 of 3 differing pairs and 2 of 4 agreeing pairs show such a change, so "
        "routing is not named.",
        "Scores differ first in block 1 at position 7, by rounding. The router passed on a "
        "difference that it received or may have received; it is at most a contributor.",
    ],
    "probes/config.py": [
        "generate draws every token: do_sample is true, set by the model's generation_config.json",
    ],
    "probes/request_pair.py": [
        "a and b differ at $.x; token ids differ from index 3 (12 and 15); each request repeats "
        "itself and the two answer alike, with other logits (2 and 2 runs)",
    ],
    "trace/events.py": ["aten.linear in model.layers.1.mlp: module row by row, bits agree"],
    "verdict/endpoint/cache_arms.py": [
        "the first reply after a cold prefix cache differs from its warm repeats in 4 of 4 cold "
        "starts (cache_salt), by up to 0.0697 nat, and the warm repeats agree",
    ],
    "verdict/endpoint/load_arms.py": [
        "3 of 64 replies inside bursts leave the answer that all 40 idle ones give (2 of 8 "
        "bursts) (p = 0.03); no witness that requests ran together",
    ],
    "verdict/contrast_findings.py": ["p (location, Holm)", "p (repeatability, Holm)"],
    "probes/batch_wording.py": [
        "the same row gets other logits in a batch of another size: up to 0.0625 in logits, 0 of "
        "32 arg-max tokens flip; one longer row of as many tokens moves that module too; first in "
        "model.layers.1.mlp.down_proj (Linear); aten.linear in model.layers.1.mlp.down_proj: "
        "module row by row, bits agree",
    ],
    "gate/judge.py": [
        "operator.dtype-changes-output: lets the difference show, together with the named cause: "
        "5 of 8 prompts change with dtype alone (10 of 32 matched pairs); control: 0 of 64 repeats "
        "differ",
        "0 of 16 matched pairs change with row (left untested: prompt p2, reruns 3 to 9 of solo)",
        "batch.row-position (row): identical rows of one batch get unequal logits: up to 3.48 in "
        "logits, 2 of 32 arg-max tokens flip [serve/a.json:3]",
        "passed: config, input; 23 equal runs exclude a rate of change of 12 % at 95 % (asked for: "
        "15 %)",
    ],
    "verdict/wording.py": ["batch: left untested: prompt p2, prompt p3"],
}
"""Files in which a sentence is put together from others, with examples of the whole."""


def test_every_sentence_that_the_code_can_write_is_translated() -> None:
    found = list(sentences())
    assert len(found) > 200
    missing = [
        (file, line, texts[0])
        for file, line, texts in found
        if file not in COMPOSED
        and not any(is_chinese(translated(text, "zh")) or text == "logits" for text in texts)
    ]
    assert missing == []


@pytest.mark.parametrize("text", [t for texts in COMPOSED.values() for t in texts])
def test_sentences_made_of_sentences(text: str) -> None:
    shown = translated(text, "zh")
    assert is_chinese(shown)
    words = re.sub(r"[$.\w\[\]/]*[._$\[][$.\w\[\]/]*", "", shown)  # names of files and modules
    assert not re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}", words), shown


def test_the_rule_base_and_the_remedies_are_translated() -> None:
    texts = {t for r in all_texts().values() for t in (r.failed, r.verify)}
    texts |= {t for r in all_texts().values() for m in r.remedies for t in (m.action, m.cost)}
    texts |= {t for e in (*WHITE_BOX, *BLACK_BOX) for t in (e.action, e.cost, e.verify)}
    missing = [
        t for t in texts if t and not looks_like_command(t) and not is_chinese(translated(t, "zh"))
    ]
    assert sorted(missing) == []


def test_templates_keep_every_value_and_are_chinese() -> None:
    for english, chinese in RAW.items():
        told = {name for name, kind in _FIELD.findall(english) if kind != "s"}
        assert {name for name, _ in _FIELD.findall(chinese)} == told, english
        words = re.search("[a-z]", _FIELD.sub("", re.sub(r"^p \(|p = |, Holm", "", english)))
        assert is_chinese(chinese) or english == "logits" or not words, english
        assert not is_chinese(english)


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _LEFT_ALONE:
                yield from strings(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value if key != "conditions" else ():
            yield from strings(item, key)
    elif isinstance(value, str) and key in SENTENCE_KEYS and value.strip():
        if not looks_like_command(value):
            yield key, value


CASES = sorted(p.name for p in (ROOT / "fixtures" / "cases").iterdir() if p.is_dir())


@pytest.mark.parametrize("name", CASES)
def test_a_whole_report_is_translated_with_its_numbers(name: str) -> None:
    report = decide(load_case(ROOT / "fixtures" / "cases" / name)).to_dict()
    for key, text in strings(report):
        shown = advice(text, "zh")
        if has(f"phrase.{text}"):
            continue
        assert is_chinese(shown) or text in ("logits", "NFC"), (key, text)
        if is_chinese(shown):
            for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text):
                assert number in shown, (text, shown)
    page = render(report, "html", lang="zh", plotly="none")
    sentence = report["verdict"]["sentence"]
    assert translated(sentence, "zh")[:12] in re.sub(r"<[^>]+>", "", page).replace("&#39;", "'")
    assert sentence[:40] not in page


def test_machine_formats_stay_english() -> None:
    report = sample("batch-confirmed")
    for kind in ("json", "sarif", "junit", "codequality", "github-annotation"):
        assert render(report, kind, lang="zh") == render(report, kind, lang="en")
    assert localised(report, "en") is report


def test_the_evidence_inside_a_chinese_page_is_the_english_report() -> None:
    import base64
    import gzip

    report = decide(load_case(ROOT / "fixtures" / "cases" / "clean-sixty-repeats")).to_dict()
    page = render(report, "html", lang="zh", plotly="none")
    packed = re.search(r"data:application/gzip;base64,([^\"]+)", page)
    assert packed is not None
    held = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    assert held["verdict"]["sentence"] == report["verdict"]["sentence"]


def test_a_configuration_rule_says_its_kind() -> None:
    finding = {"rule": "x", "kind": "ignored_parameter", "summary": "top_p has no effect here"}
    shown = localised({"layers": [{"findings": [finding]}]}, "zh")
    assert shown["layers"][0]["findings"][0]["summary"] == "参数被忽略：top_p has no effect here"


def test_other_peoples_text_is_left_as_it_is() -> None:
    report = {
        "data": {"outputs": [{"text": "verify the fix", "note": "none"}]},
        "fingerprint": {"note": "none"},
        "layers": [{"title": "verify the fix"}],
    }
    shown = localised(report, "zh")
    assert shown["data"] == report["data"] and shown["fingerprint"] == report["fingerprint"]
    assert shown["layers"][0]["title"] == "验证修复"
    quoted = "a.txt and b.txt differ: [-{n} \\g<1> {rest:t}-] {+\u202e; +}"
    assert "{n} \\g<1> {rest:t}" in translated(quoted, "zh")


def test_hostile_text_is_quick() -> None:
    started = time.monotonic()
    for piece in (" and ", " in : , ", "; ", ". ", " (", "0 of 0 ", ": ", "a"):
        translated(piece * (60_000 // len(piece)), "zh")
    assert time.monotonic() - started < 5


def test_unknown_texts_stay_english() -> None:
    assert translated("something nobody wrote down", "zh") == "something nobody wrote down"
    assert phrases("en") == ({}, ())
