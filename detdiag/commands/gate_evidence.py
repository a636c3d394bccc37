"""Evidence of the profiles that compare runs: the engines of ``detdiag run``, the gate's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detdiag.evidence.case import Case
from detdiag.gate.settings import Settings
from detdiag.gate.static import path_evidence
from detdiag.gate.values import seconds


def baseline_of(settings: Settings) -> Mapping[str, Any] | None:
    """The signed-off fingerprint that ``baseline`` names."""
    path = settings.get("baseline")
    if path is None:
        return None
    from detdiag.commands.live import read_baseline

    return read_baseline(Path(path))


def measured(
    settings: Settings, fault: str | None, outputs: Sequence[Path], quiet: bool, command: str
) -> tuple[Case, Path | None]:
    """``(case, record)`` of the target; the audit of ``paths`` is part of the case."""
    static = path_evidence(settings)  # bad files are said before anything is measured
    record: Path | None = None
    if settings.get("case"):
        case = _recorded(settings)
    elif settings.get("endpoint"):
        case, record = _endpoint(settings, outputs, quiet, command)
    else:
        case, record = _local(settings, fault, outputs, quiet, command)
    series = dict(case.series)
    if static.effective:
        series["effective_params"] = [*series.get("effective_params", ()), *static.effective]
    merged = replace(
        case,
        findings=(*case.findings, *static.findings),
        series=series,
        ignored=(*case.ignored, *static.unreadable),
    )
    return merged, record


def _recorded(settings: Settings) -> Case:
    from detdiag.engine.case_folder import load_case

    case = load_case(
        Path(settings.get("case")),
        surface=settings.get("surface"),
        engine_version=settings.get("engine-version"),
    )
    baseline = baseline_of(settings)
    if baseline is None or not case.fingerprint:
        return case
    from detdiag.fingerprint.findings import fingerprint_findings

    names = ("the baseline", "this case")
    found = fingerprint_findings(baseline, case.fingerprint, mechanism=True, names=names)
    return replace(case, findings=(*case.findings, *found))


def _local(
    settings: Settings, fault: str | None, outputs: Sequence[Path], quiet: bool, command: str
) -> tuple[Case, Path]:
    from detdiag.commands.live import LiveOptions, diagnose_demo, diagnose_model

    options = LiveOptions(
        model=settings.get("model"),
        prompt=(),
        prompts=_path(settings.get("prompts")),
        dtype=settings.get("dtype"),
        device=settings.get("device"),
        attn=None,
        trust_remote_code=False,
        revision=None,
        generate_kwargs=_path(settings.get("generate-kwargs")),
        max_new_tokens=settings.get("max-new-tokens"),
        batch_sizes=settings.get("batch-sizes"),
        repeats=settings.get("runs"),
        baseline=_path(settings.get("baseline")),
        only=None,
        skip=None,
        budget_s=seconds(settings.get("budget")),
        seed=0,
        resume=None,
        outputs=tuple(outputs),
        quiet=quiet,
        demo_fault=fault,
        command=command,
    )
    return diagnose_demo(options) if fault is not None else diagnose_model(options)


def _endpoint(
    settings: Settings, outputs: Sequence[Path], quiet: bool, command: str
) -> tuple[Case, Path]:
    from detdiag.commands.endpoint import EndpointOptions, diagnose_endpoint

    return diagnose_endpoint(
        EndpointOptions(
            endpoint=(settings.get("endpoint"),),
            model_name=settings.get("model-name"),
            prompts=_path(settings.get("prompts")),
            request=_path(settings.get("request")),
            api_key_env=settings.get("api-key-env"),
            max_requests=settings.get("max-requests"),
            rps=settings.get("rps"),
            budget_s=seconds(settings.get("budget")),
            max_new_tokens=settings.get("max-new-tokens"),
            repeats=settings.get("runs"),
            baseline=_path(settings.get("baseline")),
            outputs=tuple(outputs),
            quiet=quiet,
            command=command,
        )
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
