"""Tiny random models, and targets built around them in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Qwen3Config,
)

from detdiag.evidence.case import Margin, ProbeStatus
from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation
from detdiag.probes.interface import Plan, ProbeContext
from detdiag.targets.local import LocalTarget, text_prompts

VOCAB = 96


class CharTokenizer:
    """One id per character (its code modulo the vocabulary); enough of the real interface."""

    pad_token_id = 0
    eos_token_id = None
    bos_token_id = 1
    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [2 + ord(c) % (VOCAB - 2) for c in text]}

    def decode(self, ids: Iterable[int], **_: Any) -> str:
        return "".join(chr(32 + int(i)) for i in ids)


def config(kind: str) -> Any:
    common = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2}
    if kind == "gpt2":
        return GPT2Config(
            vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, n_positions=1024,
            bos_token_id=1, eos_token_id=None,
        )  # fmt: skip
    cls = {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind]
    extra = {"head_dim": 12} if kind == "qwen3" else {}
    return cls(
        **common, **extra, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=2048, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


def target(
    kind: str = "llama", dtype: torch.dtype = torch.float32, n_prompts: int = 2
) -> LocalTarget:
    """A random model with weights large enough that margins are not all alike."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config(kind), dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3.0)
    return around(model, n_prompts)


def around(model: Any, n_prompts: int = 2) -> LocalTarget:
    texts = ["the cat sat on the mat", "a long road to walk"][:n_prompts]
    return LocalTarget(
        name="tiny",
        path=None,
        model=model,
        tokenizer=CharTokenizer(),
        device="cpu",
        dtype=str(model.dtype).removeprefix("torch."),
        prompts=text_prompts(texts),
    )


def context(made: LocalTarget, budget_s: float = 60.0, **plan: Any) -> ProbeContext:
    settings = {"batch_sizes": (1, 2, 4), "max_new_tokens": 6, **plan}
    return ProbeContext(made, Plan(**settings), time.monotonic() + budget_s)


class Seen:
    """Events of one or more probes, by kind."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.events = list(events)
        self.findings = [e for e in self.events if isinstance(e, Finding)]
        self.observations = [e for e in self.events if isinstance(e, Observation)]
        self.margins = [e for e in self.events if isinstance(e, Margin)]
        self.status = [e for e in self.events if isinstance(e, ProbeStatus)]
        self.series = dict(e for e in self.events if isinstance(e, tuple))

    def failed(self) -> list[Finding]:
        return [f for f in self.findings if f.outcome == "failed"]

    def rules(self) -> set[str]:
        return {f.rule for f in self.failed()}

    def finding(self, rule: str) -> Finding:
        return next(f for f in self.findings if f.rule == rule)
