"""The operator table of the report."""

from __future__ import annotations

import re
from typing import Any

from detdiag.trace.labels import Comparison

_BLOCK = re.compile(r"\.(\d+)(\.|$)")


def operator_table(
    comparison: Comparison, replays: tuple[dict[str, Any], ...], limit: int = 200
) -> tuple[dict[str, Any], ...]:
    """Born operators one by one, then one row for each operator and label, at most ``limit``."""
    measured = {(r["op"], r["module"]): r for r in replays}
    rows: list[dict[str, Any]] = []
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for item in comparison.ops:
        op = item.op
        if item.label == "born" and item.on_path:
            seen = measured.get((op.name, op.frame.path), {})
            rows.append(
                _row(op.name, op.frame.path, "born", 1)
                | {k: seen.get(k) for k in ("max_ulp", "replay_differs", "dispatch")}
                | {"note": item.reason, "floating": op.floating}
            )
        else:
            key = (op.name, item.label)
            if key not in groups:
                groups[key] = _row(op.name, op.frame.path, item.label, 0)
            groups[key]["count"] += 1
    order = ("born", "inherited", "absorbed", "unalignable", "unmatched", "bookkeeping", "equal")
    rest = sorted(groups.values(), key=lambda r: (order.index(r["label"]), -r["count"]))
    return tuple((rows + rest)[:limit])


def _row(op: str, module: str, label: str, count: int) -> dict[str, Any]:
    found = _BLOCK.search(module)
    return {
        "op": op,
        "module": module,
        "block": int(found.group(1)) if found else None,
        "label": label,
        "count": count,
        "max_ulp": None,
        "replay_differs": None,
    }
