"""Every text of the rule files has a Chinese one, with the same names, flags and numbers."""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detdiag import rules as package
from detdiag.audit import engines
from detdiag.audit.findings import DOTTED
from detdiag.audit.text import closing_line, effective_lines, findings_lines, notes_lines
from detdiag.commands.explain import _config_lines, _verdict_lines, _words
from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding, Remedy
from detdiag.report import render
from detdiag.report.phrases import advice, compiled, is_chinese, phrases, translated
from detdiag.report.safe import looks_like_command
from detdiag.rules.decode_facts import all_facts
from detdiag.rules.load import all_rules, load_sources
from detdiag.rules.model import Rule
from detdiag.rules.verdict_rules import all_texts, describe
from detdiag.rules.versions import epochs, merge_text, parse_span
from detdiag.verdict import decide
from detdiag.verdict.remedy_catalogue import BLACK_BOX, WHITE_BOX
from detdiag.verdict.remedy_figures import clean_sentence, steps_sentence, vote_sentence
from tests.rules.rule_examples import audit_example

PACKAGE = Path(package.__file__).parents[1]
CHINESE = PACKAGE / "rules" / "rule_texts.zh.json"
RAW: dict[str, str] = json.loads(CHINESE.read_text("utf-8"))
_, EXAMPLES = load_sources()
PARTS = ("title", "explanation", "fix", "cost", "note", "versions_note")
ENGLISH = re.compile(r"\b[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}\b")
"""Three words in a row: no name of a parameter, a product or a file has as many."""
_NAME = re.compile(r"-{0,2}:?[A-Za-z0-9][\w.:/=-]*(?:\([\w=.]*\))?")
_ALSO_A_WORD = {
    "model": "模型",
    "padding": "填充",
    "replicas": "副本",
    "seed": "种子",
    "temperature": "温度",
    "thinking": "思考",
}
"""Parameters that a sentence may also speak of as a thing."""
_NOT_A_NAME = {"SDKs", "GPUs", "16-bit", "OpenAI-compatible"}


def texts_of(rule: Rule) -> list[str]:
    return [text for part in PARTS if (text := getattr(rule, part))]


CONFIG_TEXTS = sorted({text for rule in all_rules() for text in texts_of(rule)})


def names_in(text: str) -> set[str]:
    """Flags, parameters, assignments, versions and numbers: what is no word of a language."""
    found = (m[0].rstrip(".:") for m in _NAME.finditer(text))
    shape = re.compile(r"[_=]|\d|^-|[a-z][A-Z]|[A-Z]{2,}|\w\.\w")
    quoted = set(re.findall(r'"(\w+)"', text)) - {"as", "almost", "not"}
    return {name for name in found if shape.search(name)} - _NOT_A_NAME | quoted


def test_the_scan_sees_names() -> None:
    text = 'send "thinking", --no-x or A_B=1, topP 0.95, X.y(), v0.8.1; keep it at 1.0.'
    assert names_in(text) >= {"thinking", "--no-x", "A_B=1", "topP", "0.95", "v0.8.1", "1.0"}


def test_every_text_is_chinese_and_keeps_its_names() -> None:
    assert len(CONFIG_TEXTS) > 900
    for text in CONFIG_TEXTS:
        shown = advice(text, "zh")
        assert is_chinese(shown) and not ENGLISH.search(shown), shown
        assert [name for name in names_in(text) if name not in shown] == [], (text, shown)
        assert shown.endswith("。") is text.endswith("."), shown


def test_a_title_and_a_fix_keep_the_parameter_they_are_about() -> None:
    for rule in all_rules():
        leaf = rule.subject.rsplit(".", 1)[-1]
        word = re.compile(rf"(?<![\w-]){re.escape(leaf)}(?![\w-])")
        for text in filter(word.search, (rule.title, rule.fix)):
            shown = advice(text, "zh")
            assert leaf in shown or _ALSO_A_WORD[leaf] in shown, (text, shown)


def test_verdict_rules_and_decode_facts_are_chinese() -> None:
    found = {t for r in all_texts().values() for t in (r.passed, r.failed, r.why, r.verify)}
    found |= {t for f in all_facts().values() for t in (f.greedy_rule, f.sampled_rule, f.rng)}
    shown = {text: advice(text, "zh") for text in found if not looks_like_command(text)}
    assert {t: s for t, s in shown.items() if not is_chinese(s) or ENGLISH.search(s)} == {}


def said_by_engines() -> Iterator[str]:
    """Every text with a space in the resolvers: origins, notes and reasons."""
    for path in sorted(Path(engines.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        inside = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
        inside |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (getattr(v, "value", "7") for v in node.values)
                yield "".join(p if isinstance(p, str) else "7" for p in parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if " " in node.value and id(node) not in inside:
                    yield node.value


def test_what_the_resolvers_say_is_chinese() -> None:
    found = {
        t for t in said_by_engines() if re.search(r"[a-z]{2} \w", t) and "_from_model" not in t
    }
    lists = {t for t in found if re.fullmatch(r"(?:[a-z_-]+ ){7,}[a-z_-]+", t)}  # names of fields
    assert len(found - lists) > 60
    assert sorted(t for t in found - lists if not is_chinese(translated(t, "zh"))) == []


def figures_of(k: int, n: int, careful: int | None = 9) -> dict[str, Any]:
    votes = {"target_error": 0.01, "at_share": None if 2 * k <= n else 5, "at_lower_end": careful}
    return {
        "modal": {"query": "q 1", "k": k, "n": n, "ci95": [0.4, 0.9]},
        "votes": votes,
        "divergence": {"k": k, "n": n},
        "clean_runs": {"tenth": 29, "target": 299, "target_rate": 0.01},
    }


ARITHMETIC = [
    vote_sentence({}),
    vote_sentence(figures_of(8, 8)),
    vote_sentence(figures_of(4, 8)),
    vote_sentence(figures_of(7, 8)),
    vote_sentence(figures_of(7, 8, None)),
    steps_sentence(figures_of(7, 8)),
    clean_sentence(figures_of(7, 8)),
]


@pytest.mark.parametrize("text", ARITHMETIC)
def test_the_arithmetic_beside_a_remedy_keeps_its_numbers(text: str) -> None:
    shown = translated(text, "zh")
    assert is_chinese(shown) and not ENGLISH.search(shown)
    assert sorted(re.findall(r"\d[\d.]*", shown)) == sorted(re.findall(r"\d[\d.]*", text))


def all_stretches() -> set[str]:
    line = epochs(map(parse_span, (">=0.3.0", "<=0.5.3", ">=0.8.0,<0.18.0")))
    every = range(len(line))
    return {merge_text(range(a, b + 1), line) for a in every for b in every[a:]} | {
        merge_text([0, 2], line)
    }


def test_no_chinese_text_is_left_over() -> None:
    """A changed English text leaves its old translation behind: it must go too."""
    known = {*CONFIG_TEXTS, *said_by_engines(), *map(str, ARITHMETIC), *all_stretches()}
    known |= {rule.source for rule in all_rules()} | {
        str(e.source) for e in (*WHITE_BOX, *BLACK_BOX)
    }
    for rule in (*all_texts().values(), describe("batch.x-changes-output")):
        known |= {rule.passed, rule.failed, rule.why}
    for facts in all_facts().values():
        known |= {facts.greedy_rule, facts.sampled_rule, facts.rng, facts.seed}
    known |= {"temperature 0.7 is above 0", "request", "call", "keyword", "settings", "engine"}
    known |= {"greedy", "sampling", "tie-sampling", "unknown"}
    forms = [(english, re.compile(compiled(english, "").pattern)) for english in RAW]
    left = [e for e, form in forms if e not in known and not any(map(form.fullmatch, known))]
    assert left == []


@pytest.mark.parametrize("text", sorted(all_stretches()))
def test_stretches_of_versions(text: str) -> None:
    shown = translated(f"greedy (vllm {text}; the version is not known)", "zh")
    assert shown.startswith("贪心（vllm ") and shown.endswith("；版本未知）")
    assert not re.search("[a-z]{3,}", shown.removeprefix("贪心（vllm"))
    assert re.findall(r"\d[\d.]+", shown) == re.findall(r"\d[\d.]+", text)


def test_an_audit_of_every_example_is_chinese() -> None:
    bad = set()
    for example in EXAMPLES:
        found = audit_example(example)
        lines = [*findings_lines(found.findings, "zh"), *notes_lines(found.findings, "zh")]
        lines += [*effective_lines(found.effective, "zh")]
        lines.append(closing_line(found.findings, 1, "high", 0, "zh"))
        bad |= {line for line in lines if ENGLISH.search(line)}
    assert sorted(bad) == []


def finding_of(rule: Rule) -> Finding:
    return Finding(
        layer="config",
        rule=DOTTED[rule.kind],
        outcome="failed" if rule.kind == "sampling_still_on" else "inconclusive",
        summary=rule.title,
        severity=rule.severity,
        kind=rule.kind,
        subject=rule.subject,
        surface=rule.surface,
        remedy=Remedy(rule.fix, cost=rule.cost or None),
        where="serve/request.json:3",
        data={"rule_id": rule.id, "explanation": rule.explanation},
    )


@pytest.mark.parametrize("kind", ["html", "md", "text"])
def test_a_report_of_every_rule_is_chinese(kind: str) -> None:
    case = Case(
        findings=tuple(map(finding_of, all_rules())),
        target={"kind": "files", "name": "request.json"},
        method={"command": "detdiag audit request.json"},
    )
    page = render(decide(case).to_dict(), kind, lang="zh", plotly="none")
    bare = re.sub(r"(?s)<(style|script|code|pre|samp)\b.*?</\1>|```.*?```|`[^`\n]*`", "", page)
    lines = html.unescape(re.sub(r"<[^>]*>", "\n", bare)).splitlines()
    ours = [line for line in lines if not re.match(r"\s*(来源|detdiag |from |\w+ = )", line)]
    assert [line for line in ours if ENGLISH.search(line)] == []
    assert "推测解码在一遍中检验多个词元" in page


@pytest.mark.parametrize("rule", ["vllm-018", "hf-004", "decode.exact-tie", "batch.size-sensitive"])
def test_explain_is_chinese(rule: str) -> None:
    found, text, words = [r for r in all_rules() if r.id == rule], describe(rule), _words("zh")
    lines = list(_config_lines(found, words) if found else _verdict_lines(text, words))  # type: ignore[arg-type]
    ours = [line for line in lines if not line.startswith(("来源", "条件", "或", "证据"))]
    assert len(ours) >= 5 and not any("来源:" not in x and ENGLISH.search(x) for x in ours)
    english = list(
        _config_lines(found, _words("en")) if found else _verdict_lines(text, _words("en"))  # type: ignore[arg-type]
    )
    assert len(english) == len(lines) and not any(map(is_chinese, english))


def test_plain_english_needs_no_templates() -> None:
    phrases.cache_clear()
    assert list(findings_lines([finding_of(all_rules()[0])]))
    assert phrases.cache_info().currsize == 0
