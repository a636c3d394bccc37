"""Cost of the trace as ratios measured in one run: plain forward, traced forward, DebugMode.

Run by hand: ``python tests/bench/trace_bench.py [MODEL_DIR] [--batch 1 8]``. Without a folder
a model of SmolLM2-135M's shape with random weights is used. Rounds are interleaved and the
smallest time of each is taken, so that other load on the machine hits all of them alike.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch

from detdiag.trace import ForwardCall, bit_equal, record


def build(folder: str | None, dtype: torch.dtype) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if folder:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def debug_mode(model: torch.nn.Module, call: ForwardCall) -> Any:
    from torch.utils._debug_mode import DebugMode

    with DebugMode() as mode, DebugMode.log_tensor_hashes(hash_inputs=True):
        call.run(model)
    return mode


def rounds(
    actions: dict[str, Callable[[], Any]], n: int, clock: Callable[[], float]
) -> dict[str, float]:
    best = {name: float("inf") for name in actions}
    for _ in range(n):
        for name, action in actions.items():
            start = clock()
            action()
            best[name] = min(best[name], clock() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=81)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-debug-mode", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    model = build(options.model, getattr(torch, options.dtype))
    row = torch.randint(0, 40000, (options.tokens,), generator=torch.Generator().manual_seed(0))
    solo = ForwardCall.from_rows([row.tolist()])
    reference = record(model, solo)
    for n in options.batch:
        call = ForwardCall.from_rows([row.tolist()] * n)
        alone = reference if n > 1 else None
        actions: dict[str, Callable[[], Any]] = {
            "plain": lambda c=call: c.run(model),
            "traced": lambda c=call, a=alone: record(model, c, solo=a),
        }
        if not options.no_debug_mode:
            actions["DebugMode"] = lambda c=call: debug_mode(model, c)
        best = rounds(actions, options.rounds, clock)
        tracemalloc.start()
        trace = record(model, call, solo=alone)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        neutral = bit_equal(trace.logits, call.run(model))
        ratios = ", ".join(f"{k} {v / best['plain']:.2f}x" for k, v in best.items())
        print(
            f"batch {n}: plain {best['plain']:.2f} s; {ratios}; "
            f"{trace.coverage.operators} operators, {trace.coverage.views} views, "
            f"{trace.coverage.bytes_hashed / 1e6:.0f} MB hashed, Python peak {peak / 1e6:.1f} MB, "
            f"neutral {neutral}",
            flush=True,
        )


if __name__ == "__main__":
    main()
