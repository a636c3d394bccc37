"""Build an endpoint run from command-line options. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detdiag.errors import DetdiagError
from detdiag.evidence.case import Case

if TYPE_CHECKING:
    from detdiag.probes.endpoint.plan import EndpointPlan
    from detdiag.targets.prompts import Prompt


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """The options of ``detdiag run --endpoint``, as given."""

    endpoint: tuple[str, ...]
    model_name: str | None = None
    prompt: tuple[str, ...] = ()
    prompts: Path | None = None
    request: Path | None = None
    api_key_env: str | None = None
    header: tuple[str, ...] = ()
    max_requests: int | None = None
    rps: float | None = None
    budget_s: float = 180.0
    timeout_s: float = 60.0
    max_new_tokens: int = 32
    repeats: int = 20
    baseline: Path | None = None
    resume: Path | None = None
    only: tuple[str, ...] | None = None
    skip: tuple[str, ...] | None = None
    seed: int = 0
    outputs: tuple[Path, ...] = ()
    quiet: bool = False
    command: str = "detdiag run --endpoint URL"


def diagnose_endpoint(options: EndpointOptions) -> tuple[Case, Path]:
    """Walk the phases on ``options.endpoint``; returns the case and its record."""
    from detdiag.engine.endpoint import diagnose
    from detdiag.engine.endpoint_record import EndpointRun
    from detdiag.engine.record_path import default_record
    from detdiag.layers import LAYERS
    from detdiag.probes.endpoint.baseline import read_endpoint_baseline
    from detdiag.targets.endpoint import Limits, open_target

    asked = _asked(options)
    limits = Limits(asked.plan.max_requests, options.rps)
    headers = parse_headers(options.header)
    several = len(options.endpoint) > 1
    targets = tuple(
        open_target(
            url, asked.model, template=asked.template, headers=headers,
            api_key_env=options.api_key_env, limits=limits, timeout_s=options.timeout_s,
            replica=f"server {index}" if several else None,
        )
        for index, url in enumerate(options.endpoint, start=1)
    )  # fmt: skip
    if options.resume is not None and not options.resume.is_file():
        raise DetdiagError("cannot resume: no such record", path=options.resume)
    baseline = read_endpoint_baseline(options.baseline) if options.baseline else None
    record = options.resume or default_record(options.outputs)
    run = EndpointRun(
        targets, asked.prompts, asked.plan, record, options.command,
        only=options.only or LAYERS, skip=options.skip or (),
        resume=options.resume is not None, quiet=options.quiet, baseline=baseline,
        template=asked.template, prompts_given=asked.given,
    )  # fmt: skip
    return diagnose(run), record


@dataclass(frozen=True, slots=True)
class _Asked:
    model: str
    template: Mapping[str, Any]
    prompts: tuple[Prompt, ...]
    given: int
    plan: EndpointPlan


def _asked(options: EndpointOptions) -> _Asked:
    """Template, prompts and plan; raises :class:`DetdiagError` for what is missing."""
    from detdiag.probes.endpoint.plan import make_plan, usable_prompts
    from detdiag.targets.endpoint import parse_address, wire

    addresses = [parse_address(url) for url in options.endpoint]
    template = _template(options)
    model = options.model_name or template.get("model") or addresses[0].deployment
    if not isinstance(model, str) or not model:
        raise DetdiagError("--endpoint needs --model-name (or a model in the file of --request)")
    prompts = _prompts(options, template)
    servers = len(options.endpoint)
    plan = make_plan(
        prompts=len(prompts), servers=servers, repeats=options.repeats,
        max_requests=options.max_requests, budget_s=options.budget_s,
        max_new_tokens=wire.length_of_template(template) or options.max_new_tokens,
        seed=options.seed,
    )  # fmt: skip
    used = prompts[: usable_prompts(prompts, plan, servers)]
    return _Asked(model, template, used, len(prompts), plan)


def _template(options: EndpointOptions) -> dict[str, Any]:
    from detdiag.targets.endpoint import wire

    if options.request is None:
        return dict(wire.DEFAULT_TEMPLATE)
    try:
        raw = options.request.read_bytes()
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=options.request) from error
    return wire.read_template(raw, str(options.request))


def _prompts(options: EndpointOptions, template: Mapping[str, Any]) -> tuple[Prompt, ...]:
    from detdiag.targets.endpoint import wire
    from detdiag.targets.prompts import default_prompts, load_prompts, text_prompts

    if options.prompt and options.prompts:
        raise DetdiagError("give --prompt or --prompts, not both")
    if options.prompts is not None:
        return load_prompts(options.prompts)
    if options.prompt:
        return text_prompts(options.prompt)
    own = wire.prompt_of_template(template)
    return (own,) if own is not None else default_prompts()


def parse_headers(given: Sequence[str]) -> dict[str, str]:
    """``Name=value`` or ``Name: value``; the value is never repeated in an error."""
    out = {}
    for number, text in enumerate(given, start=1):
        at = min((i for i in (text.find("="), text.find(":")) if i > 0), default=-1)
        name = text[:at].strip() if at > 0 else ""
        if not name or not all(c.isalnum() or c in "-_" for c in name):
            raise DetdiagError(f"--header number {number}: expected NAME=VALUE")
        out[name] = text[at + 1 :].strip()
    return out


def print_plan(options: EndpointOptions) -> None:
    """The plan with request and token counts on stdout; nothing is sent."""
    from detdiag.probes.endpoint.plan import rows
    from detdiag.targets.endpoint import parse_address

    asked = _asked(options)
    parse_headers(options.header)
    table = rows(asked.plan, asked.prompts, len(options.endpoint))
    shown = ", ".join(parse_address(url).shown for url in options.endpoint)
    out = sys.stdout
    print(f"plan for {asked.model} at {shown}: nothing was sent", file=out)
    print(f"{'phase':<22}{'requests':>9}{'prompt tok':>12}{'output tok':>12}  what", file=out)
    for row in table:
        print(
            f"{row.phase:<22}{row.requests:>9}{row.prompt_tokens:>12}{row.output_tokens:>12}"
            f"  {row.note}",
            file=out,
        )
    total = [sum(getattr(r, n) for r in table) for n in ("requests", "prompt_tokens")]
    total.append(sum(r.output_tokens for r in table))
    print(f"{'at most':<22}{total[0]:>9}{total[1]:>12}{total[2]:>12}", file=out)
    rate = "" if options.rps is None else f", {options.rps:g} requests a second"
    print(
        f"{len(asked.prompts)} of {asked.given} prompts, --max-requests {asked.plan.max_requests}, "
        f"budget {asked.plan.budget_s:.0f} s{rate}; token counts are estimates",
        file=out,
    )
