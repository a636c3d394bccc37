"""Apply the rules to one deployment, at one version or at every stretch of versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from detdiag.audit.document import Document
from detdiag.audit.engines import BOUNDARIES, Effective, Inputs, resolve
from detdiag.audit.facts import Facts, RequestView, build_facts, view_request
from detdiag.audit.surfaces import SURFACES, Surface
from detdiag.evidence.finding import Finding, FindingOutcome, Kind, Remedy
from detdiag.rules.condition import MISSING, fields_of, holds, present_fields
from detdiag.rules.load import rules_by_surface
from detdiag.rules.model import Rule
from detdiag.rules.versions import Epoch, epochs, merge_text, parse_span, version_key

DOTTED: Final[Mapping[Kind, str]] = {
    "sampling_still_on": "config.sampling-still-on",
    "ignored_parameter": "config.ignored-parameter",
    "unspecified_default": "config.unspecified-default",
    "best_effort_only": "config.best-effort-only",
    "breaks_batch_invariance": "config.breaks-batch-invariance",
    "unsupported_error": "config.unsupported-error",
    "ok": "config.note",
}


@dataclass(slots=True)
class Unit:
    """One request (or none) seen together with the launch, files and call around it."""

    surfaces: tuple[str, ...]
    surface: Surface
    engine: str
    documents: Mapping[str, Document]
    view: RequestView
    base: Inputs
    extras: dict[str, Any] = field(default_factory=dict)


    @property
    def response(self) -> bool:
        """Whether the unit is an answer and not a request."""
        request = self.documents.get("request")
        return request is not None and request.role == "response"


_ABOUT_ANSWERS: Final = {"ctx.fingerprints_differ", "ctx.fingerprint_null", "body.system_fingerprint"}


@dataclass(slots=True)
class Outcome:
    """What one unit yields: findings, the parameter table and the greedy test's last answer."""

    findings: list[Finding] = field(default_factory=list)
    effective: list[dict[str, Any]] = field(default_factory=list)
    decoding: str = "unknown"


@dataclass(slots=True)
class _Look:
    epochs: list[int]
    effective: Effective
    facts: Facts


def audit_unit(unit: Unit, version: str | None) -> Outcome:
    """Every finding of one unit. Without a version each stretch of versions is judged and the
    answers are merged with their boundaries."""
    rules = [r for name in unit.surfaces for r in rules_by_surface().get(name, ())]
    if unit.response:
        rules = [r for r in rules if _ABOUT_ANSWERS & set(fields_of(r.when))]
    line = _line(unit.engine, rules, version)
    looks = _looks(unit, line)
    outcome = Outcome()
    for rule in rules:
        hits = _hits(rule, looks, line)
        # A hypothesis about some versions says nothing while the version is not known.
        if hits and (rule.verified or len(hits) == len(line)):
            finding = _finding(rule, unit, looks, hits, line, version)
            outcome.findings.append(finding)
    newest = looks[-1].effective
    outcome.decoding = newest.decoding
    if unit.response or unit.engine in ("torch", "flashattention", "flashinfer"):
        return outcome
    outcome.effective = [row for look in looks for row in _rows(unit, look, line, len(looks) > 1)]
    outcome.findings.extend(_greedy_finding(unit, looks, line))
    return outcome


def _line(engine: str, rules: Sequence[Rule], version: str | None) -> tuple[Epoch, ...]:
    if version is not None:
        return (Epoch(version_key(version), version, None),)
    spans = [rule.versions for rule in rules if rule.versions.clauses]
    spans.extend(parse_span(f">={text}") for text in BOUNDARIES.get(engine, ()))
    return epochs(spans)


def _looks(unit: Unit, line: tuple[Epoch, ...]) -> list[_Look]:
    """One look per stretch of equal effective parameters, oldest first."""
    looks: list[_Look] = []
    before: Effective | None = None
    for index, epoch in enumerate(line):
        inputs = _at(unit.base, epoch)
        effective = resolve(unit.engine, inputs)
        if before is not None and before == effective:
            looks[-1].epochs.append(index)
            continue
        facts = build_facts(
            inputs, effective, unit.view, unit.documents, unit.engine, unit.extras
        )
        looks.append(_Look([index], effective, facts))
        before = effective
    return looks


def _at(base: Inputs, epoch: Epoch) -> Inputs:
    from dataclasses import replace

    return replace(base, key=epoch.key)


def _hits(rule: Rule, looks: Sequence[_Look], line: tuple[Epoch, ...]) -> list[int]:
    hits: list[int] = []
    for look in looks:
        chosen = [i for i in look.epochs if rule.versions.holds(line[i].key)]
        if chosen and holds(rule.when, look.facts.lookup):
            hits.extend(chosen)
    return hits


def _finding(
    rule: Rule,
    unit: Unit,
    looks: Sequence[_Look],
    hits: list[int],
    line: tuple[Epoch, ...],
    version: str | None,
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
    "request": "request", "body": "request", "call": "call", "object": "call",
    "file": "model_file", "modelfile": "modelfile", "arg": "launch", "env": "launch",
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


def _rows(
    unit: Unit, look: _Look, line: tuple[Epoch, ...], several: bool
) -> Iterable[dict[str, Any]]:
    for name, param in look.effective.params.items():
        row: dict[str, Any] = {
            "surface": unit.surface.name,
            "parameter": name,
            "value": param.value,
            "origin": param.origin,
            "ignored": list(param.ignored),
        }
        if param.note:
            row["note"] = param.note
        if several:
            row["versions"] = merge_text(look.epochs, line)
        yield row
    row = {
        "surface": unit.surface.name,
        "parameter": "decoding",
        "value": look.effective.decoding,
        "origin": look.effective.why,
        "ignored": [],
    }
    if several:
        row["versions"] = merge_text(look.epochs, line)
    yield row


def _greedy_finding(
    unit: Unit, looks: Sequence[_Look], line: tuple[Epoch, ...]
) -> list[Finding]:
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


__all__ = ["MISSING", "SURFACES", "Outcome", "Unit", "audit_unit", "view_request"]
