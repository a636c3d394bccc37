"""From a rule that holds to a finding: outcome, wording, the flag as written, the place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from detdiag.audit.document import Document
from detdiag.audit.facts import Facts
from detdiag.audit.unit import Look, Unit
from detdiag.evidence.finding import Finding, FindingOutcome, Kind, Remedy
from detdiag.rules.condition import fields_of, present_fields
from detdiag.rules.model import Rule
from detdiag.rules.versions import Epoch, merge_text

DOTTED: Final[Mapping[Kind, str]] = {
    "sampling_still_on": "config.sampling-still-on",
    "ignored_parameter": "config.ignored-parameter",
    "unspecified_default": "config.unspecified-default",
    "best_effort_only": "config.best-effort-only",
    "breaks_batch_invariance": "config.breaks-batch-invariance",
    "unsupported_error": "config.unsupported-error",
    "ok": "config.note",
}


def make_finding(
    rule: Rule,
    unit: Unit,
    looks: Sequence[Look],
    hits: list[int],
    line: tuple[Epoch, ...],
) -> Finding:
    facts = next(look.facts for look in reversed(looks) if set(look.epochs) & set(hits))
    partial = len(hits) < len(line)
    summary = rule.title
    if partial:
        summary += f" ({unit.engine} {merge_text(hits, line)}; the version is not known)"
    if not rule.verified:
        summary += " (hypothesis: not established in a source that was read)"
    data: dict[str, Any] = {"rule_id": rule.id, "explanation": rule.explanation}
    if rule.versions.clauses:
        data["versions"] = str(rule.versions)
    if rule.versions_note:
        data["versions_note"] = rule.versions_note
    if partial:
        data["applies"] = merge_text(hits, line)
    if rule.edits:
        data["edits"] = dict(rule.edits)
    subject = subject_as_written(rule, facts, unit)
    return Finding(
        layer="config",
        rule=DOTTED[rule.kind],
        outcome=_outcome(rule, facts, partial),
        summary=summary,
        severity=rule.severity,
        kind=rule.kind,
        subject=subject,
        surface=rule.surface,
        remedy=Remedy(rule.fix, cost=rule.cost or None, source=rule.source),
        where=where(rule, facts, unit),
        data=data,
    )


def subject_as_written(rule: Rule, facts: Facts, unit: Unit) -> str:
    """The rule's subject; a flag keeps the spelling that the launch line uses."""
    launch = unit.documents.get("launch")
    name = rule.subject.lstrip("-")
    if rule.subject.startswith("-") and launch is not None and launch.launch is not None:
        flag = launch.launch.flags.get(name)
        spelled = rule.subject if flag is None else flag.spelled.partition(".")[0]
        if spelled.lstrip("-").replace("_", "-") != name:
            return rule.subject if spelled.startswith("--no-") else spelled
    return rule.subject


def _outcome(rule: Rule, facts: Facts, partial: bool) -> FindingOutcome:
    """Only a fact that certainly leaves sampling on accuses."""
    if rule.kind == "ok":
        return "passed"
    if rule.outcome:
        return rule.outcome  # type: ignore[return-value]
    if partial or not rule.verified or rule.ties_only:
        return "inconclusive"
    if rule.kind == "sampling_still_on":
        return "failed" if facts.lookup("ctx.decoding") == "sampling" else "inconclusive"
    if rule.kind == "ignored_parameter" and rule.severity == "high":
        return "failed" if facts.lookup("ctx.decoding") == "sampling" else "inconclusive"
    return "inconclusive"


_SPACE_ROLE: Final = {
    "request": "request",
    "body": "request",
    "call": "call",
    "object": "call",
    "file": "model_file",
    "modelfile": "modelfile",
    "arg": "launch",
    "env": "launch",
}


def where(rule: Rule, facts: Facts, unit: Unit) -> str | None:
    """``path:line`` of the field a finding is about, or of the document that lacks it."""
    subject = rule.subject.rsplit(".", 1)[-1].lstrip("-")
    present = present_fields(rule.when, facts.lookup)
    ordered = sorted(present, key=lambda name: name.rsplit(".", 1)[-1] != subject)
    for name in ordered:
        place = field_place(name, unit)
        if place is not None:
            return place
    for held in ("call", "request", "modelfile", "model_file"):  # the one that wins comes first
        document = unit.documents.get(held)
        if document is not None and subject in document.data:
            return document.where((subject,))
    for name in fields_of(rule.when):
        role = _SPACE_ROLE.get(name.partition(".")[0])
        if role is not None and role in unit.documents:
            return unit.documents[role].where()
    return next((document.where() for document in unit.documents.values()), None)


def field_place(name: str, unit: Unit) -> str | None:
    """``path:line`` of one present field."""
    space, _, path = name.partition(".")
    role = _SPACE_ROLE.get(space)
    document = unit.documents.get(role or "")
    if document is None:
        return None
    if space == "request":
        return document.where(unit.view.paths.get(path, ()))
    if space == "object":
        return document.where(("generation_config", path))
    if space in ("arg", "env"):
        return _launch_place(document, space, path)
    return document.where(tuple(path.split(".")))


def _launch_place(document: Document, space: str, path: str) -> str:
    launch = document.launch
    if launch is None:
        return document.where((path,))
    if space == "env":
        var = launch.env.get(path)
        return f"{document.path}:{var.line}" if var else document.where()
    flag = launch.flags.get(path) or launch.flags.get(path.partition(".")[0])
    return f"{document.path}:{flag.line}" if flag else document.where()


def greedy_finding(unit: Unit, looks: Sequence[Look]) -> list[Finding]:
    """A passed finding where every stretch of versions is greedy."""
    if unit.surface.role not in ("request", "call", "model_file", "modelfile") or any(
        look.effective.decoding != "greedy" for look in looks
    ):
        return []
    if not unit.base.has_request and unit.engine != "hf" and unit.base.modelfile is None:
        return []
    why = looks[-1].effective.why
    main = unit.documents.get("request") or next(iter(unit.documents.values()), None)
    return [
        Finding(
            layer="config",
            rule="config.greedy",
            outcome="passed",
            summary=f"decoding is greedy: {why}",
            kind="ok",
            subject="do_sample" if unit.engine == "hf" else "temperature",
            surface=unit.surface.name,
            where=None if main is None else main.where(),
            data={"decoding": "greedy"},
        )
    ]
