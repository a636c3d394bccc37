"""What stops each routing fault, and what that costs."""

from __future__ import annotations

from typing import Final

from detdiag.evidence.finding import Remedy

_REPLAY = Remedy(
    action="record the expert ids of the reference run and replay them (routing replay)",
    cost="storage of k small integers per token and block; the router must accept given ids",
    verify="detdiag run --model DIR --only moe",
)
REMEDIES: Final[dict[str, Remedy]] = {
    "moe.capacity-drop": Remedy(
        action="turn token dropping off, or set the expert capacity to the tokens of a batch; "
        "batch 1 also avoids it",
        cost="capacity off: memory up to experts/top_k times the balanced load in the worst "
        "case; batch 1: throughput",
        verify="detdiag run --model DIR --only moe --batch-sizes 1,2,4,8",
    ),
    "moe.router-tie": Remedy(
        action="compute router scores in float32 and break ties by the lower expert index "
        "(a stable descending sort instead of topk)",
        cost="one small float32 matrix product per block, below 1 % of a forward pass; outputs "
        "change once against today's",
        verify="detdiag run --model DIR --only moe",
    ),
    "moe.router-precision": Remedy(
        action="select experts on the unrounded float32 scores in every deployment",
        cost="below 1 % of a forward pass; outputs change once against today's",
        verify="detdiag run --model DIR --only moe",
    ),
    "moe.router-jitter": Remedy(
        action="set the router's jitter or exploration noise to 0 and call model.eval()",
        command="config.router_jitter_noise = 0.0",
        cost="none at inference: the noise is meant for training",
        verify="detdiag run --model DIR --only moe",
    ),
    "moe.expert-order": Remedy(
        action="sum expert outputs in a fixed order (by expert index) and accumulate in float32",
        cost="a gather in place of atomic adds, typically 1 to 5 % of the block",
        verify="detdiag run --model DIR --only moe",
    ),
    "moe.selection-at-equal-scores": Remedy(
        action="make expert selection a function of the token's own scores: no overflow "
        "re-routing, no load-dependent bias at inference, stable top-k by index",
        cost="load balance: some experts wait for others",
        verify="detdiag run --model DIR --only moe --batch-sizes 1,2,4,8",
    ),
    "moe.weights-at-equal-scores": Remedy(
        action="normalise the expert weights over the token's own experts only, in float32",
        cost="none measurable",
        verify="detdiag run --model DIR --only moe",
    ),
    "moe.inherited-flip": Remedy(
        action="fix the earlier layer first; a float32 router or routing replay only narrows "
        "the damage",
        cost="see the earlier layer's remedy",
        verify="detdiag run --model DIR --only batch,moe",
    ),
    "moe.routing-replay": _REPLAY,
    "moe.expert-parallel": Remedy(
        action="compare at one expert-parallel size: the number of ranks changes how expert "
        "outputs are grouped and summed",
        cost="placement: all replicas must use the same expert-parallel layout",
    ),
}
