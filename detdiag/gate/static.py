"""Evidence without a model run: audited files, prompt pairs, the template, the fingerprint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.case import Case, ProbeStatus
from detdiag.evidence.finding import Evidence, Finding
from detdiag.gate.settings import Settings
from detdiag.layers import LAYERS, Layer

_NO_RUN: Final = "this profile runs no model"


@dataclass(slots=True)
class Static:
    """What the files say. ``reasons`` tells why a static layer has no findings; ``unreadable``
    lists files of a walked folder that do not parse."""

    findings: list[Finding] = field(default_factory=list)
    effective: list[dict[str, Any]] = field(default_factory=list)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    series: dict[str, Any] = field(default_factory=dict)
    reasons: dict[Layer, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def static_evidence(settings: Settings, baseline: Mapping[str, Any] | None) -> Static:
    """Audit the paths, compare the pairs, render the template, compare the fingerprint."""
    model = settings.get("model")
    folder = Path(model) if model and Path(model).is_dir() else None
    out = path_evidence(settings, _model_files(folder, settings))
    if folder is not None:
        out.findings += _template(folder)
    if not any(f.layer == "input" for f in out.findings):
        out.reasons["input"] = "no pair of prompts or requests and no chat template was given"
    if not any(f.layer == "config" for f in out.findings):
        out.reasons.setdefault("config", "no file that configures a model was given")
    _version(out, folder, model, baseline)
    return out


def path_evidence(settings: Settings, more: Sequence[Path] = ()) -> Static:
    """What the files and folders of ``paths`` say about configuration and input; the files and
    ``more`` are one deployment."""
    out = Static()
    paths = [Path(p) for p in settings.get("paths", ())]
    for path in paths:
        if not path.exists():
            raise DetdiagError("no such file or folder", path=path)
    _config(out, paths, [p for p in more if p not in paths], settings)
    out.findings += _pairs(paths)
    return out


def _config(out: Static, paths: Sequence[Path], more: Sequence[Path], settings: Settings) -> None:
    from detdiag.audit import walk
    from detdiag.audit.deployment import audit_files

    options = {
        "surface": settings.get("surface"),
        "engine_version": settings.get("engine-version"),
    }
    read = 0
    results = []
    files = [*(p for p in paths if not p.is_dir()), *more]
    if files:
        results.append(audit_files(files, **options))
    for folder in (p for p in paths if p.is_dir()):
        walked = walk.audit_folder(folder, **options)
        results.append(walked.result)
        out.unreadable += walked.unreadable
    for result in results:
        out.findings += result.findings
        out.effective += result.effective
        read += len({doc.path for doc in result.documents})
    if read and not any(f.outcome == "failed" for f in out.findings):
        out.findings.append(
            Finding(
                "config",
                "config.sampling-still-on",
                "passed",
                f"{read} file{'s' if read != 1 else ''} audited: nothing is certain to sample",
            )
        )


def _model_files(folder: Path | None, settings: Settings) -> list[Path]:
    """What ships with the model acts on every call that does not override it; the call does."""
    files = [] if folder is None else [folder / "generation_config.json"]
    call = settings.get("generate-kwargs")
    return [p for p in files if p.is_file()] + ([Path(call)] if call else [])


def _pairs(paths: Sequence[Path]) -> list[Finding]:
    from detdiag.engine.case_folder import PAIRS
    from detdiag.inputs.observed import static_input_findings

    folders = dict.fromkeys(p if p.is_dir() else p.parent for p in paths)
    named = {p for p in paths if not p.is_dir()}
    out: list[Finding] = []
    for folder in folders:
        pairs = []
        for names in PAIRS:
            a, b = (folder / name for name in names)
            wanted = folder in paths or {a, b} <= named
            held = wanted and a.is_file() and b.is_file()
            pairs.append((a.read_bytes(), b.read_bytes()) if held else None)
        if any(pairs):
            out += static_input_findings(prompts=pairs[0], requests=pairs[1])
    return out


def _template(folder: Path) -> list[Finding]:
    """Does the chat template print the time? Rendered in a sandbox under two fixed clocks."""
    from detdiag.fingerprint.collect import special_tokens
    from detdiag.fingerprint.template import template_section

    renders = template_section(folder, special_tokens(folder)).get("renders", {})
    clocks = [name for name, found in renders.items() if found["reads_clock"]]
    if not renders:
        return []
    where = str(folder / "chat_template.jinja")
    evidence = (Evidence("templates that read the clock", len(clocks), len(renders), "templates"),)
    if not clocks:
        text = "the chat template renders the same text under two clocks"
        return [Finding("input", "input.template-reads-clock", "passed", text, evidence=evidence)]
    return [
        Finding(
            "input",
            "input.template-reads-clock",
            "failed",
            "the chat template prints the date or time: the same messages are other bytes later",
            severity="high",
            evidence=evidence,
            where=where if Path(where).is_file() else str(folder / "tokenizer_config.json"),
        )
    ]


def _version(
    out: Static, folder: Path | None, model: str | None, baseline: Mapping[str, Any] | None
) -> None:
    from detdiag.fingerprint import fingerprint_model
    from detdiag.fingerprint.diff import diff_fingerprints
    from detdiag.fingerprint.findings import fingerprint_findings

    if folder is not None:
        out.fingerprint = fingerprint_model(folder)
    if baseline is None:
        out.reasons["version"] = "no baseline fingerprint was given (--baseline)"
        return
    if folder is None:
        held = "is no folder here" if model else "was not given (--model)"
        out.reasons["version"] = f"a baseline was given, but the model {held}"
        return
    rows = diff_fingerprints(baseline, out.fingerprint)
    if rows:
        out.series["fingerprint_diff"] = [row.to_dict() for row in rows]
    out.findings += fingerprint_findings(
        baseline, out.fingerprint, mechanism=True, names=("the baseline", "this model")
    )


def static_case(static: Static, settings: Settings, command: str) -> Case:
    """The files alone as a case, with the reason for every layer that they do not speak of."""
    named = settings.get("model") or " ".join(settings.get("paths", ())) or "files"
    series = dict(static.series)
    if static.effective:
        series["effective_params"] = static.effective
    return Case(
        findings=tuple(static.findings),
        probes=tuple(
            ProbeStatus(layer, "skipped", static.reasons.get(layer, _NO_RUN))
            for layer in LAYERS
            if not any(f.layer == layer for f in static.findings)
        ),
        target={"kind": "files", "name": named},
        fingerprint=static.fingerprint,
        method={"conditions": "files only, no model was run", "command": command},
        series=series,
        ignored=tuple(static.unreadable),
    )
