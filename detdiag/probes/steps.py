"""Prefill and cached decode steps, module by module: where a free-running batch first differs.

A teacher-forced forward has other shapes than ``generate``; what only the prompt's own length or
a single-token step shows is found here, with the reference's tokens forced step by step.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from detdiag.probes.modules import Birth, ModuleLog, compare_logs, recording
from detdiag.probes.runs import Reference
from detdiag.targets.local import LocalTarget


def stepped(target: LocalTarget, ref: Reference, size: int, row: int = 0) -> Iterator[ModuleLog]:
    """One log a step for ``size`` copies of the prompt: the prefill, then forced single tokens.

    Mask and positions are passed as ``generate`` passes them.
    """
    model = target.model
    parameters = inspect.signature(model.forward).parameters
    takes_positions = "position_ids" in parameters
    cache_name = "cache" if "cache" in parameters else "past_key_values"
    cache: Any = None
    done = 0
    for tokens in (ref.prompt_ids, *((t,) for t in ref.continuation[:-1])):
        step = target.pad([tokens] * size)
        inputs: dict[str, Any] = {
            "input_ids": step.input_ids,
            "attention_mask": torch.ones(
                size, done + len(tokens), dtype=torch.long, device=target.device
            ),
        }
        if takes_positions:
            inputs["position_ids"] = step.position_ids + done
        with recording(model, step, row) as log, torch.no_grad():
            out = model(**inputs, **{cache_name: cache}, use_cache=True)
        log.logits = out.logits[row]
        cache = getattr(out, cache_name)
        done += len(tokens)
        yield log


def first_birth(target: LocalTarget, ref: Reference, size_a: int, size_b: int) -> Birth | None:
    """The first module that differs between two batch sizes, at the first step that shows one.

    ``token`` counts from the start of the prompt. Equal sizes look for a run-to-run difference.
    """
    done = 0
    logs = zip(stepped(target, ref, size_a), stepped(target, ref, size_b), strict=False)
    for index, (a, b) in enumerate(logs):
        births = compare_logs(a, b).births
        if births:
            first = next((x for x in births if x.beyond_rounding), births[0])
            return replace(first, token=first.token + done)
        done += len(ref.prompt_ids) if index == 0 else 1
    return None
