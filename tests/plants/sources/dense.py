"""Llama models with one thing wrong, chosen by ``config.planted`` (a list of names)."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
)


def pieces(linear, x, parts):
    pairs = zip(x.chunk(parts, -1), linear.weight.chunk(parts, -1), strict=True)
    return [F.linear(a, w) for a, w in pairs]


def add_up(parts):
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total


class PermutedSumMLP(LlamaMLP):
    """The order comes from the process's own generator, as torch.randperm gives it."""

    def forward(self, x):
        parts = pieces(self.down_proj, self.act_fn(self.gate_proj(x)) * self.up_proj(x), 8)
        return add_up([parts[i] for i in torch.randperm(len(parts)).tolist()])


class UrandomSumMLP(LlamaMLP):
    """The order comes from the operating system."""

    def forward(self, x):
        parts = pieces(self.down_proj, self.act_fn(self.gate_proj(x)) * self.up_proj(x), 8)
        random.Random(os.urandom(8)).shuffle(parts)
        return add_up(parts)


class ThreadedSumMLP(LlamaMLP):
    """The order is that in which worker threads finish."""

    def forward(self, x):
        inner = self.act_fn(self.gate_proj(x)) * self.up_proj(x)

        def work(part):
            time.sleep(os.urandom(1)[0] * 2e-6)
            return part()

        jobs = [
            lambda a=a, w=w: F.linear(a, w)
            for a, w in zip(inner.chunk(8, -1), self.down_proj.weight.chunk(8, -1), strict=True)
        ]
        with ThreadPoolExecutor(8) as pool:
            done = [f.result() for f in as_completed([pool.submit(work, j) for j in jobs])]
        return add_up(done)


class JitterMLP(LlamaMLP):
    """One ULP up or down at a place chosen by the clock."""

    def forward(self, x):
        out = super().forward(x)
        source = torch.Generator().manual_seed(time.perf_counter_ns() % 2**31)
        sign = torch.randint(-1, 2, out.shape, generator=source, device="cpu").to(out.dtype)
        return out + sign * out.abs() * torch.finfo(out.dtype).eps


class RacyAttention(LlamaAttention):
    """Heads are added into the output projection in no fixed order."""

    def forward(self, *args, **kwargs):
        kept = []
        handle = self.o_proj.register_forward_pre_hook(lambda m, inputs: kept.append(inputs[0]))
        try:
            _, weights = super().forward(*args, **kwargs)
        finally:
            handle.remove()
        parts = pieces(self.o_proj, kept[0], 8)
        random.SystemRandom().shuffle(parts)
        return add_up(parts), weights


class TokenCountNorm(LlamaRMSNorm):
    """Above some number of tokens a call the squares are summed in two 16-bit halves."""

    most = 64

    def forward(self, x):
        if x.numel() // x.shape[-1] <= self.most:
            return super().forward(x)
        squares = x.float().pow(2)
        halves = [h.sum(-1, keepdim=True).to(torch.bfloat16) for h in squares.chunk(2, -1)]
        variance = (halves[0] + halves[1]).float() / x.shape[-1]
        scaled = x.float() * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * scaled.to(x.dtype)


class ShortNorm(TokenCountNorm):
    """The same with a limit that only a prompt on its own stays below."""

    most = 16


class BatchInt8Linear(nn.Linear):
    """Dynamic int8 activations, one scale for the whole tensor."""

    def forward(self, x):
        scale = x.abs().max().clamp(min=1e-8) / 127
        return F.linear((x / scale).round() * scale, self.weight)


class PreviousCallMLP(LlamaMLP):
    """Adds a little of what the call before left behind."""

    def forward(self, x):
        out = super().forward(x)
        before = getattr(self, "left_behind", None)
        self.left_behind = out.detach().mean(dim=(0, 1))
        return out if before is None else out + 0.1 * before


class CountingMLP(LlamaMLP):
    """Scales by a number that counts calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + 0.01 * (self.calls % 5))


class PeakScaleMLP(LlamaMLP):
    """Divides by the largest activation seen so far: repeats until a larger one comes by."""

    def forward(self, x):
        peak = max(getattr(self, "peak", 0.0), float(x.abs().max()))
        self.peak = peak
        step = peak / 31
        return super().forward((x / step).round() * step)


class DropoutMLP(LlamaMLP):
    """Functional dropout that ignores the mode."""

    def forward(self, x):
        return F.dropout(super().forward(x), 0.1, training=True)


class StuckInTraining(LlamaAttention):
    """Attention dropout, and a train() that does not let go."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.attention_dropout = 0.1

    def train(self, mode=True):
        return super().train(True)


class PlantedForCausalLM(LlamaForCausalLM):
    """The model that config.json names in auto_map."""

    def __init__(self, config):
        super().__init__(config)
        for name in config.planted:
            PLANTS[name](self, config)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        if "no-positions" in self.config.planted:
            position_ids = None
        if "no-mask" in self.config.planted:
            attention_mask = position_ids = None
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **kwargs,
        )

    def _get_logits_processor(self, *args, **kwargs):
        found = super()._get_logits_processor(*args, **kwargs)
        if "tie-by-draw" in self.config.planted:
            found.append(draw_among_ties)
        return found


def draw_among_ties(input_ids, scores):
    best = scores == scores.max(-1, keepdim=True).values
    chosen = torch.multinomial(best.float(), 1)
    return torch.full_like(scores, -torch.inf).scatter(1, chosen, scores.gather(1, chosen))


def mlp(cls, block=1):
    def plant(model, config):
        model.model.layers[block].mlp = cls(config)

    return plant


def attention(cls, block=1):
    def plant(model, config):
        model.model.layers[block].self_attn = cls(config, block)

    return plant


def norm(cls):
    def plant(model, config):
        model.model.layers[1].input_layernorm = cls(config.hidden_size, config.rms_norm_eps)

    return plant


def batch_int8(model, config):
    made = BatchInt8Linear(config.intermediate_size, config.hidden_size, bias=False)
    model.model.layers[1].mlp.down_proj = made


def nothing(model, config):
    assert isinstance(model.model.layers[0], LlamaDecoderLayer)


PLANTS = {
    "permuted-sum": mlp(PermutedSumMLP),
    "urandom-sum": mlp(UrandomSumMLP),
    "threaded-sum": mlp(ThreadedSumMLP),
    "jitter": mlp(JitterMLP, 2),
    "racy-attention": attention(RacyAttention),
    "token-count-norm": norm(TokenCountNorm),
    "token-count-norm-16": norm(ShortNorm),
    "batch-int8": batch_int8,
    "previous-call": mlp(PreviousCallMLP),
    "counting": mlp(CountingMLP),
    "peak-scale": mlp(PeakScaleMLP),
    "dropout": mlp(DropoutMLP),
    "stuck-in-training": attention(StuckInTraining, 0),
    "no-mask": nothing,
    "no-positions": nothing,
    "tie-by-draw": nothing,
}
