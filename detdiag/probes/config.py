"""What ``generate`` will really do: the library's own merge, its generation mode, and a trial.

Nothing is guessed about precedence. The effective GenerationConfig is what the installed
transformers builds from the model's file and the user's call; the rule base only adds what is
worth knowing about it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.evidence.record import Event
from detdiag.layers import Layer
from detdiag.probes.interface import ProbeContext

TRIAL_RUNS: Final = 4
TRIAL_TOKENS: Final = 12
_SHOWN: Final = (
    "do_sample temperature top_k top_p min_p typical_p num_beams repetition_penalty "
    "no_repeat_ngram_size penalty_alpha max_time"
).split()
_MEASURED: Final = frozenset({"sampling_still_on", "unsupported_error"})


class ConfigProbe:
    """Is anything still sampling, ignored, defaulted or refused in the user's own call?"""

    layer: Layer = "config"

    def run(self, context: ProbeContext) -> Iterator[Event]:
        began = time.monotonic()
        call = dict(context.plan.generate_kwargs)
        try:
            config = context.target.effective_generation(**call)
        except (ValueError, TypeError, AttributeError) as error:
            yield _refused("generation_config", str(error))
            yield ProbeStatus("config", "done", "", time.monotonic() - began)
            return
        yield ("effective_params", list(effective_rows(context.target.model, config, call)))
        refusal = temperature_refused(config)
        if refusal is not None:
            yield _refused("temperature", refusal)
        elif config.do_sample is True:
            yield _sampling(context, config)
        else:
            yield _greedy(config)
        yield from _rule_notes(context, call)
        yield ProbeStatus("config", "done", "", time.monotonic() - began)


def temperature_refused(config: Any) -> str | None:
    """The library's own complaint about the temperature of a sampling call, or None."""
    if config.do_sample is not True:
        return None
    from transformers.generation.logits_process import TemperatureLogitsWarper

    try:
        TemperatureLogitsWarper(config.temperature)
    except (ValueError, TypeError) as error:
        return str(error).split(". ")[0]
    return None


def effective_rows(model: Any, config: Any, call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """(parameter, value, origin, what lost) for every generation parameter that matters."""
    given = call.get("generation_config")
    passed = given if isinstance(given, Mapping) else getattr(given, "__dict__", {})
    sources = (
        ("keyword", call),
        ("GenerationConfig object", passed),
        ("generation_config.json", model.generation_config.__dict__),
    )
    for name in _SHOWN:
        value = getattr(config, name, None)
        if value is None:
            continue
        said = [
            (origin, values[name])
            for origin, values in sources
            if isinstance(values, Mapping) and values.get(name) is not None
        ]
        origin = next((o for o, v in said if v == value), "library default")
        yield {
            "surface": "hf.generate_kwargs",
            "parameter": name,
            "value": value,
            "origin": origin,
            "ignored": [f"{o}: {v}" for o, v in said if o != origin and v != value],
        }


def _refused(subject: str, message: str) -> Finding:
    return Finding(
        layer="config",
        rule="config.unsupported-error",
        outcome="inconclusive",
        kind="unsupported_error",
        subject=subject,
        surface="hf.generate_kwargs",
        severity="high",
        summary=f"transformers refuses the call: {message[:200]}",
        remedy=Remedy("pass do_sample=False and drop temperature", "do_sample=False"),
    )


def _sampling(context: ProbeContext, config: Any) -> Finding:
    """Sampling is on; a short trial of the call as it is and with do_sample=False backs it."""
    trial = _trial(context)
    ties_only = config.top_k == 1
    origin = _origin(context)
    what = "draws among exact ties (top_k 1)" if ties_only else "draws every token"
    return Finding(
        layer="config",
        rule="config.sampling-still-on",
        outcome="inconclusive" if ties_only and not trial["as_is_differs"] else "failed",
        kind="sampling_still_on",
        subject="do_sample",
        surface="hf.generate_kwargs",
        severity="high",
        summary=f"generate {what}: do_sample is true, set by {origin}",
        evidence=tuple(trial["evidence"]),
        remedy=Remedy(
            "pass do_sample=False to generate",
            "model.generate(..., do_sample=False)",
            cost="less varied text",
            verify="detdiag run again: the config layer passes and the solo repeats agree",
        ),
        explains=("repeat", "do_sample"),
        proven=trial["proven"],
        data={"mode": str(getattr(config.get_generation_mode(), "value", ""))},
    )


def _origin(context: ProbeContext) -> str:
    call = context.plan.generate_kwargs
    if call.get("do_sample"):
        return "the call"
    given = call.get("generation_config")
    inside = (
        given.get("do_sample") if isinstance(given, Mapping) else getattr(given, "do_sample", None)
    )
    return "the GenerationConfig object" if inside else "the model's generation_config.json"


def _trial(context: ProbeContext) -> dict[str, Any]:
    """Repeats of the first prompt as called and greedily, as far as the budget goes."""
    empty = {"evidence": [], "proven": False, "as_is_differs": False}
    target = context.target
    if not target.prompts or context.remaining_s() <= 0:
        return empty
    call = dict(context.plan.generate_kwargs)
    greedy = {**call, "do_sample": False}
    try:
        row = target.encode(target.prompts[0])
        sampled = _texts(context, row, call)
        calm = _texts(context, row, greedy)
    except Exception:  # noqa: BLE001  (custom code; the finding stands without a trial)
        return empty
    if len(sampled) < 2 or len(calm) < 2:
        return empty
    differs, same = len(set(sampled)) > 1, len(set(calm)) == 1
    evidence = [
        Evidence("distinct answers as called", len(set(sampled)), len(sampled), "runs"),
        Evidence("distinct answers with do_sample=False", len(set(calm)), len(calm), "runs"),
    ]
    return {"evidence": evidence, "proven": differs and same, "as_is_differs": differs}


def _texts(
    context: ProbeContext, row: tuple[int, ...], call: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    tokens = min(TRIAL_TOKENS, context.plan.max_new_tokens)
    for _ in range(TRIAL_RUNS):
        if context.remaining_s() <= 0:
            break
        made = context.target.generate([row], max_new_tokens=tokens, **call)
        found.append(tuple(made[0].token_ids))
    return found


def _greedy(config: Any) -> Finding:
    mode = str(getattr(config.get_generation_mode(), "value", "greedy"))
    return Finding(
        layer="config",
        rule="config.greedy",
        outcome="passed",
        kind="ok",
        subject="do_sample",
        surface="hf.generate_kwargs",
        summary=f"generate draws nothing: its mode is {mode.replace('_', ' ')}",
        data={"decoding": "greedy", "mode": mode},
    )


def _rule_notes(context: ProbeContext, call: Mapping[str, Any]) -> Iterator[Finding]:
    """What the rule base adds about the same file and call, sampling aside (that was asked)."""
    import transformers

    from detdiag.audit.deployment import audit_documents
    from detdiag.audit.document import Document

    given = call.get("generation_config")
    plain: dict[str, Any] = {
        k: v for k, v in call.items() if isinstance(v, (bool, int, float, str, list, type(None)))
    }
    if given is not None:
        plain["generation_config"] = given if isinstance(given, Mapping) else given.to_diff_dict()
    file = context.target.model.generation_config.to_diff_dict()
    documents = [
        Document("generation_config.json", "model_file", "hf.generation_config", file, said=True),
        Document("generate call", "call", "hf.generate_kwargs", plain, said=True),
    ]
    version = transformers.__version__
    for finding in audit_documents(documents, engine_version=version).findings:
        if finding.kind not in (*_MEASURED, "ok"):
            yield finding
