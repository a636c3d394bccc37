"""What the routing trace costs: a traced forward over a plain one, on one thread.

Run as ``python tests/bench/moe_bench.py``; the trace may cost at most 15 %. A model of the size
that people run on a CPU for a test, in the three shapes that matter: one row, a batch, and the
loop over experts (``eager``), in which every expert is its own Python call.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from detdiag.moe.capture import capture
from detdiag.moe.discover import find_routers

LIMIT = 1.15
PAIRS = 15


def mixtral() -> Any:
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=2048, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=4, num_local_experts=8,
        )
    )  # fmt: skip


def qwen3() -> Any:
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=2048, hidden_size=256, intermediate_size=512, moe_intermediate_size=128,
            num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, num_experts=32,
            num_experts_per_tok=4, head_dim=32,
        )
    )  # fmt: skip


def ratio(model: Any, ids: torch.Tensor) -> tuple[float, float, float]:
    """(median of paired ratios, plain seconds, traced seconds)."""
    routers = find_routers(model)

    def plain() -> float:
        start = time.process_time()
        model(input_ids=ids, use_cache=False)
        return time.process_time() - start

    def traced() -> float:
        start = time.process_time()
        with capture(model, routers):
            model(input_ids=ids, use_cache=False)
        return time.process_time() - start

    with torch.no_grad():
        plain(), traced()
        pairs = [(plain(), traced()) for _ in range(PAIRS)]
    plains, traces = [a for a, _ in pairs], [b for _, b in pairs]
    # CPU seconds of one thread; the fastest of each is what the code costs on a busy machine.
    return min(traces) / min(plains), statistics.median(plains), statistics.median(traces)


def main() -> int:
    torch.set_num_threads(1)
    worst = 0.0
    for name, make in (("mixtral", mixtral), ("qwen3_moe", qwen3)):
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            model = make().to(dtype).eval()
            for rows, length in ((1, 64), (8, 64)):
                ids = torch.arange(rows * length).reshape(rows, length) % 2000
                cost, a, b = ratio(model, ids)
                worst = max(worst, cost)
                shape = f"{rows}x{length}"
                print(f"{name} {dtype} {shape}: {cost:.3f} ({a:.4f} s, {b:.4f} s)")
    print(f"worst {worst:.3f}, limit {LIMIT}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
