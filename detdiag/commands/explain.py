"""``detdiag explain RULE``: what a rule says, why, what to do, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from detdiag.errors import DetdiagError

if TYPE_CHECKING:
    from detdiag.rules.model import Rule
    from detdiag.rules.verdict_rules import RuleText


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("explain")(explain)


def explain(
    rule: Annotated[
        str | None,
        typer.Argument(
            help="A config rule such as vllm-002, or a verdict rule such as batch.size-sensitive."
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List every rule.")] = False,
) -> None:
    """Print a rule: what it says, why, how to verify, what to do and its source."""
    from detdiag.rules.load import all_rules
    from detdiag.rules.verdict_rules import all_texts, describe

    if list_all or rule is None:
        for line in _listing(all_rules(), all_texts()):
            print(line)
        return
    found = [r for r in all_rules() if r.id == rule]
    text = describe(rule)
    if found:
        lines = list(_config_lines(found))
    elif text is not None:
        lines = list(_verdict_lines(text))
    else:
        raise _unknown(rule, [r.id for r in all_rules()] + list(all_texts()))
    for line in lines:
        print(line)


def _listing(rules: tuple[Rule, ...], texts: dict[str, RuleText]) -> Iterator[str]:
    seen: set[str] = set()
    for rule in rules:
        if rule.id not in seen:
            seen.add(rule.id)
            yield f"{rule.id:10} {rule.surface:26} {rule.kind:24} {rule.title}"
    for name, text in texts.items():
        yield f"{name:37} {text.failed}"


def _config_lines(rules: list[Rule]) -> Iterator[str]:
    from detdiag.rules.condition import text_of

    first = rules[0]
    yield f"{first.id}: {first.title}"
    yield f"surface:   {first.surface}"
    yield f"kind:      {first.kind} (severity {first.severity})"
    yield "subject:   " + ", ".join(dict.fromkeys(r.subject for r in rules))
    spans = dict.fromkeys(str(r.versions) for r in rules)
    yield "versions:  " + "; ".join("every version" if s == "all" else s for s in spans)
    if first.versions_note:
        yield f"           {first.versions_note}"
    yield f"condition: {text_of(first.when)}"
    for rule in rules[1:]:
        if rule.when != first.when:
            yield f"       or: {text_of(rule.when)}"
    yield f"why:       {first.explanation}"
    yield f"fix:       {first.fix}"
    if first.cost:
        yield f"cost:      {first.cost}"
    yield f"source:    {first.source}"
    status = (
        "verified" if first.verified else "hypothesis, not established in a source that was read"
    )
    yield f"evidence:  {', '.join(first.evidence)} ({status})"
    if first.note:
        yield f"note:      {first.note}"


def _verdict_lines(text: RuleText) -> Iterator[str]:
    yield f"{text.rule}: {text.failed}"
    yield f"layer:     {text.layer}"
    yield f"passed:    {text.passed}"
    yield f"why:       {text.why}"
    yield f"verify:    {text.verify}"
    if text.rule in ("decode.exact-tie", "decode.sampler-path", "decode.sampler-draws"):
        from detdiag.rules.decode_facts import all_facts

        for facts in all_facts().values():
            yield f"engine:    {facts.engine}: {facts.greedy_rule}; otherwise {facts.sampled_rule}"
    for remedy in text.remedies:
        yield f"remedy:    {remedy.action}"
        for name in ("command", "cost", "source"):
            value = getattr(remedy, name)
            if value:
                yield f"           {name}: {value}"


def _unknown(rule: str, known: list[str]) -> DetdiagError:
    close = _nearest(rule.lower(), known)
    tip = "did you mean " + ", ".join(close) + "?" if close else "detdiag explain --list shows all"
    return DetdiagError(f"unknown rule {rule!r}", tip=tip)


def _nearest(rule: str, known: list[str]) -> list[str]:
    """Closest names; an id with the same letters and the same number comes first (vllm-2)."""
    import difflib
    import re

    asked = re.fullmatch(r"([a-z]+)[-_ ]?0*(\d+)", rule)
    exact = f"{asked[1]}-{int(asked[2]):03d}" if asked else None
    close = difflib.get_close_matches(rule, known, n=3, cutoff=0.5)
    return list(dict.fromkeys([*([exact] if exact in known else []), *close]))[:3]
