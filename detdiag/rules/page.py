"""The page that lists every rule, written by ``scripts/build_rules.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detdiag.rules.condition import text_of
from detdiag.rules.decode_facts import all_facts
from detdiag.rules.model import Rule
from detdiag.rules.verdict_rules import all_texts

_HEAD = """# Rules

What `detdiag audit` and the verdict know. This page is generated from `detdiag/rules/` by
`python scripts/build_rules.py`; `detdiag explain RULE` prints one rule.

Severity follows from the kind: `sampling_still_on` and `unsupported_error` are high,
`ignored_parameter` is high for temperature, seed, top_p and top_k and medium otherwise,
`breaks_batch_invariance` and `unspecified_default` are medium, `best_effort_only` is low. A rule
marked *hypothesis* was not established in a source that was read: it informs and never accuses.
"""


def rules_page(rules: Sequence[Rule]) -> str:
    """Markdown text of the page."""
    return "\n".join([_HEAD, *_config(rules), *_decode(), *_verdict()]) + "\n"


def _config(rules: Sequence[Rule]) -> Iterator[str]:
    surfaces: dict[str, dict[str, list[Rule]]] = {}
    for rule in rules:
        surfaces.setdefault(rule.surface, {}).setdefault(rule.id, []).append(rule)
    yield f"{len({r.id for r in rules})} config rules on {len(surfaces)} surfaces.\n"
    for surface, by_id in surfaces.items():
        yield f"## {surface}\n"
        for variants in by_id.values():
            yield from _rule(variants)


def _rule(variants: list[Rule]) -> Iterator[str]:
    first = variants[0]
    subjects = ", ".join(f"`{s}`" for s in dict.fromkeys(r.subject for r in variants))
    yield f"### {first.id}: {_plain(first.title)}\n"
    state = "" if first.verified else ", hypothesis"
    spans = "; ".join(dict.fromkeys(str(r.versions) for r in variants))
    yield f"- `{first.kind}` ({first.severity}{state}) on {subjects}; versions: {spans}"
    if first.versions_note:
        yield f"- boundary: {_plain(first.versions_note)}"
    for rule in variants:
        if rule is first or (rule.when != first.when and rule.subject == first.subject):
            yield f"- when `{text_of(rule.when)}`"
    yield f"- why: {_plain(first.explanation)}"
    yield f"- fix: {_plain(first.fix)}" + (f" (cost: {first.cost})" if first.cost else "")
    yield f"- source: {_plain(first.source)} [{', '.join(first.evidence)}]"
    yield (f"- note: {_plain(first.note)}\n" if first.note else "")


def _decode() -> Iterator[str]:
    yield "## Ties and random numbers, per engine\n"
    yield "| engine | greedy | equal logits repeat | otherwise | generator | seed |"
    yield "|---|---|---|---|---|---|"
    for name, facts in all_facts().items():
        repeats = "yes" if facts.greedy_repeats else "no"
        yield (
            f"| {name} | {facts.greedy_rule} | {repeats} | {facts.sampled_rule} | {facts.rng} "
            f"| {facts.seed} |"
        )
    yield ""


def _verdict() -> Iterator[str]:
    yield "## Verdict rules\n"
    for name, text in all_texts().items():
        yield f"### {name}: {_plain(text.failed)}\n"
        yield f"- passed: {_plain(text.passed)}"
        yield f"- why: {_plain(text.why)}"
        yield f"- verify: {_plain(text.verify)}"
        for remedy in text.remedies:
            cost = f" (cost: {remedy.cost})" if remedy.cost else ""
            command = f": `{remedy.command}`" if remedy.command else ""
            yield f"- remedy: {_plain(remedy.action)}{command}{cost}"
        yield ""


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|")
