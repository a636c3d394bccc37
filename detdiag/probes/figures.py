"""Tables for the report's figures."""

from __future__ import annotations

import math
from typing import Any

from detdiag.probes.modules import Comparison
from detdiag.probes.runs import Reference
from detdiag.targets.local import LocalTarget

MAX_MODULES = 400
MAX_TOKENS = 256


def heatmap(target: LocalTarget, ref: Reference, compared: Comparison) -> dict[str, Any]:
    """Module by token: log10 of the relative change of the module's output, None where equal.

    The row is teacher-forced; tokens include the prompt.
    """
    paths = list(compared.relative)[:MAX_MODULES]
    births = compared.births
    first = None
    if births:
        first = {"module": births[0].path, "token": births[0].token, "op": None}
    elif compared.first is not None:
        first = {"module": compared.first[0], "token": compared.first[1], "op": None}
    return {
        "query": ref.prompt.id,
        "modules": paths,
        "tokens": [target.tokenizer.decode([t]) for t in ref.row[:MAX_TOKENS]],
        "log10_rel": [[_log10(v) for v in compared.relative[p][:MAX_TOKENS]] for p in paths],
        "first": first,
    }


def _log10(value: float) -> float | None:
    if value <= 0 or math.isnan(value):
        return None
    return round(math.log10(value), 3) if math.isfinite(value) else 300.0
