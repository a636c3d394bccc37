"""Operator traces of a model and proofs by intervention.

``prove_batch`` explains why a row differs in a batch, ``prove_rerun`` why a run differs from
itself; ``events`` turns either into the record. Importing this package imports torch.
"""

from __future__ import annotations

from detdiag.trace.batch import prove_batch
from detdiag.trace.bits import bit_equal, hash_tensor, ulp_distance, ulp_size
from detdiag.trace.calls import ForwardCall, Layout
from detdiag.trace.effects import Distance, MarginBridge, distance, margin_bridge
from detdiag.trace.events import events, findings
from detdiag.trace.labels import Comparison, compare
from detdiag.trace.oplog import Trace
from detdiag.trace.recorder import record
from detdiag.trace.rerun import prove_rerun
from detdiag.trace.result import Effect, Proof, Source
from detdiag.trace.rows import ROW_OPS, RowStats, row_by_row

__all__ = [
    "ROW_OPS",
    "Comparison",
    "Distance",
    "Effect",
    "ForwardCall",
    "Layout",
    "MarginBridge",
    "Proof",
    "RowStats",
    "Source",
    "Trace",
    "bit_equal",
    "compare",
    "distance",
    "events",
    "findings",
    "hash_tensor",
    "margin_bridge",
    "prove_batch",
    "prove_rerun",
    "record",
    "row_by_row",
    "ulp_distance",
    "ulp_size",
]
