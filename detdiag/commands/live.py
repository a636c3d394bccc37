"""Build a live run from command-line options. Imports torch; only ``run`` calls it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detdiag.commands.shared import parse_sizes
from detdiag.errors import DetdiagError
from detdiag.evidence.case import Case
from detdiag.layers import LAYERS


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of ``detdiag run`` that a live target needs, as given."""

    model: str | None
    prompt: tuple[str, ...]
    prompts: Path | None
    dtype: str | None
    device: str | None
    attn: str | None
    trust_remote_code: bool
    revision: str | None
    generate_kwargs: Path | None
    max_new_tokens: int
    batch_sizes: str
    repeats: int
    baseline: Path | None
    only: tuple[str, ...] | None
    skip: tuple[str, ...] | None
    budget_s: float
    seed: int
    resume: Path | None
    outputs: tuple[Path, ...]
    quiet: bool
    demo_fault: str | None
    command: str
    verify_s: float = 0.0
    """Wall seconds for trying remedies after the walk; 0: none are tried."""


def diagnose_model(options: LiveOptions) -> tuple[Case, Path]:
    """Load ``--model`` and walk the layers; returns the case and its record."""
    assert options.model is not None
    prompts = _prompts(options)
    kwargs = _json_object(options.generate_kwargs) if options.generate_kwargs else {}
    baseline = read_baseline(options.baseline) if options.baseline else None
    parse_sizes(options.batch_sizes)
    _check_record(options)
    return _diagnose(options, options.model, prompts, kwargs, baseline)


def demo_faults() -> list[str]:
    """One line per fault that ``--demo-fault`` can plant."""
    from detdiag.demo import FAULTS

    return [
        f"{name:<16} {fault.layer or 'healthy':<9} {fault.summary}"
        for name, fault in FAULTS.items()
    ]


def diagnose_demo(options: LiveOptions) -> tuple[Case, Path]:
    """Plant the fault (if any) in an embedded model and walk the layers."""
    import difflib

    from detdiag.demo import DEFAULT_FAULT, FAULTS

    name = options.demo_fault or DEFAULT_FAULT
    if name not in FAULTS:
        close = difflib.get_close_matches(name, FAULTS, n=1)
        tip = f"did you mean {close[0]!r}?" if close else "--demo-fault list shows them"
        raise DetdiagError(f"unknown demo fault {name!r}", tip=tip)
    parse_sizes(options.batch_sizes)
    _check_record(options)
    given = read_baseline(options.baseline) if options.baseline else None
    with tempfile.TemporaryDirectory(prefix="detdiag-demo-") as work:
        planted = FAULTS[name].apply(Path(work))
        return _diagnose(
            options,
            str(planted.model_dir),
            planted.prompts,
            planted.generate_kwargs,
            planted.baseline if given is None else given,
            planted=planted,
        )


def _diagnose(
    options: LiveOptions,
    model: str,
    prompts: Any,
    kwargs: Mapping[str, Any],
    baseline: Mapping[str, Any] | None,
    planted: Any = None,
) -> tuple[Case, Path]:
    from detdiag.engine.live import LiveRun, default_record, diagnose
    from detdiag.engine.walk import Selection
    from detdiag.fingerprint import fingerprint_model
    from detdiag.fingerprint.hub import cached_snapshot
    from detdiag.probes.interface import Plan
    from detdiag.targets.local import load_local

    trust = options.trust_remote_code or bool(planted is not None and planted.trust_remote_code)
    target = load_local(
        model,
        dtype=options.dtype or (getattr(planted, "dtype", None) if planted else None),
        device=options.device,
        attn=options.attn,
        trust_remote_code=trust,
        revision=options.revision,
        prompts=prompts,
        generate_kwargs=kwargs,
        serve=planted.name if planted is not None else None,
    )
    folder = Path(model) if Path(model).is_dir() else cached_snapshot(model, options.revision)
    fingerprint = fingerprint_model(folder) if folder is not None else {}
    if planted is not None:
        target.name = f"demo ({planted.name})"
    plan = Plan(
        batch_sizes=parse_sizes(options.batch_sizes),
        repeats=options.repeats,
        max_new_tokens=options.max_new_tokens,
        budget_s=options.budget_s,
        seed=options.seed,
        baseline=baseline,
        generate_kwargs=kwargs,
    )
    scratch = dict(planted.scratch) if planted is not None else {}
    record = options.resume or default_record(options.outputs)
    run = LiveRun(
        target,
        plan,
        record,
        options.command,
        Selection(options.only or LAYERS, options.skip or ()),
        fingerprint,
        resume=options.resume is not None,
        quiet=options.quiet,
        scratch=scratch,
    )
    began = time.monotonic()
    case = diagnose(run)
    if options.verify_s:
        from detdiag.engine.verify import verify_remedies

        unused = max(0.0, options.budget_s - (time.monotonic() - began))
        case = verify_remedies(run, case, options.verify_s + unused)
    return case, record


def _prompts(options: LiveOptions) -> Any:
    from detdiag.targets.prompts import load_prompts, text_prompts

    if options.prompt and options.prompts:
        raise DetdiagError("give --prompt or --prompts, not both")
    if options.prompts is not None:
        return load_prompts(options.prompts)
    return text_prompts(options.prompt) if options.prompt else None


def _check_record(options: LiveOptions) -> None:
    if options.resume is not None and not options.resume.is_file():
        raise DetdiagError("cannot resume: no such record", path=options.resume)


def read_baseline(path: Path) -> dict[str, Any]:
    """A fingerprint file, a JSON report or a record: whatever holds the signed-off fingerprint."""
    from detdiag.engine.case_folder import read_json
    from detdiag.evidence.record import read_record

    if path.suffix in (".ndjson", ".jsonl"):
        found: Any = dict(read_record(path).fingerprint)
    else:
        found = read_json(path)
        if isinstance(found, dict) and str(found.get("schema", "")).startswith("detdiag.report/"):
            found = found.get("fingerprint")
    if not isinstance(found, dict) or not found:
        raise DetdiagError("expected a fingerprint (a JSON object of version facts)", path=path)
    return found


def _json_object(path: Path) -> dict[str, Any]:
    from detdiag.engine.case_folder import read_json

    value = read_json(path)
    if not isinstance(value, dict):
        raise DetdiagError("expected a JSON object of keyword arguments", path=path)
    return value
