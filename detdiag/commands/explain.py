"""``detdiag explain RULE``: what a rule says, why, what to do, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    lang: Annotated[str, typer.Option(help="Language of the text: en or zh.")] = "en",
) -> None:
    """Print a rule: what it says, why, how to verify, what to do and its source."""
    from detdiag.rules.load import all_rules
    from detdiag.rules.verdict_rules import all_texts, describe

    words = _words(lang)
    if list_all or rule is None:
        for line in _listing(all_rules(), all_texts(), words):
            print(line)
        return
    found = [r for r in all_rules() if r.id == rule]
    text = describe(rule)
    if found:
        lines = list(_config_lines(found, words))
    elif text is not None:
        lines = list(_verdict_lines(text, words))
    else:
        raise _unknown(rule, [r.id for r in all_rules()] + list(all_texts()))
    for line in lines:
        print(line)


@dataclass(frozen=True, slots=True)
class _Words:
    """``say`` has the labels and ``tell`` the sentences of the rules in one language."""

    say: Callable[..., str]
    tell: Callable[[str], str]

    def line(self, label: str, text: str) -> str:
        """``label:`` and the text, in columns; the empty label continues the line above."""
        from detdiag.audit.text import columns_of

        head = f"{self.say(f'explain.{label}')}:" if label else ""
        return head + " " * max(11 - columns_of(head), 1) + text

    def after(self, label: str, text: str) -> str:
        """A detail of the line above."""
        return self.line("", f"{self.say(f'explain.{label}')}: {text}")


def _words(lang: str) -> _Words:
    from detdiag.audit.text import teller
    from detdiag.report.messages import speaker

    return _Words(speaker(lang), teller(lang))


def _listing(rules: tuple[Rule, ...], texts: dict[str, RuleText], words: _Words) -> Iterator[str]:
    seen: set[str] = set()
    for rule in rules:
        if rule.id not in seen:
            seen.add(rule.id)
            yield f"{rule.id:10} {rule.surface:26} {rule.kind:24} {words.tell(rule.title)}"
    for name, text in texts.items():
        yield f"{name:37} {words.tell(text.failed)}"


def _config_lines(rules: list[Rule], words: _Words) -> Iterator[str]:
    from detdiag.rules.condition import text_of

    first, say, tell, line = rules[0], words.say, words.tell, words.line
    yield f"{first.id}: {tell(first.title)}"
    yield line("surface", first.surface)
    severity = say("explain.severity", severity=say(f"severity.{first.severity}"))
    yield line("kind", f"{first.kind} ({severity})")
    yield line("subject", ", ".join(dict.fromkeys(r.subject for r in rules)))
    spans = dict.fromkeys(str(r.versions) for r in rules)
    every = say("explain.every_version")
    yield line("versions", "; ".join(every if s == "all" else s for s in spans))
    if first.versions_note:
        yield line("", tell(first.versions_note))
    yield line("condition", text_of(first.when))
    for rule in rules[1:]:
        if rule.when != first.when:
            yield line("or", text_of(rule.when))
    yield line("why", tell(first.explanation))
    yield line("fix", tell(first.fix))
    if first.cost:
        yield line("cost", tell(first.cost))
    yield line("source", tell(first.source))
    status = say("explain.verified" if first.verified else "explain.hypothesis")
    yield line("evidence", f"{', '.join(first.evidence)} ({status})")
    if first.note:
        yield line("note", tell(first.note))


def _verdict_lines(text: RuleText, words: _Words) -> Iterator[str]:
    tell, line = words.tell, words.line
    yield f"{text.rule}: {tell(text.failed)}"
    yield line("layer", text.layer)
    yield line("passed", tell(text.passed))
    yield line("why", tell(text.why))
    yield line("verify", tell(text.verify))
    if text.rule in ("decode.exact-tie", "decode.sampler-path", "decode.sampler-draws"):
        from detdiag.rules.decode_facts import all_facts

        for facts in all_facts().values():
            rules = {"greedy": tell(facts.greedy_rule), "sampled": tell(facts.sampled_rule)}
            yield line("engine", f"{facts.engine}: " + words.say("explain.draws", **rules))
    for remedy in text.remedies:
        yield line("remedy", tell(remedy.action))
        for name in ("command", "cost", "source"):
            value = getattr(remedy, name)
            if value:
                yield words.after(name, value if name == "command" else tell(value))


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
