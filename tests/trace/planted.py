"""Tiny models with one planted fault each, and the calls that show it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from detdiag.trace import ForwardCall
from detdiag.trace.memory import renames
from detdiag.trace.modules import tracked
from detdiag.trace.schema import named_tensors, op_info

ROW = list(range(3, 14))


def llama(
    seed: int = 0, dtype: torch.dtype = torch.float32, attn: str = "sdpa", blocks: int = 3
) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=blocks,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM._from_config(config, attn_implementation=attn).to(dtype).eval()


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=128,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config).eval()


def mixtral(seed: int = 0) -> MixtralForCausalLM:
    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    return MixtralForCausalLM(config).eval()


def alone(row: list[int] = ROW, **kwargs: object) -> ForwardCall:
    return ForwardCall.from_rows([row], **kwargs)  # type: ignore[arg-type]


def batch(n: int = 4, length: int = 11, **kwargs: object) -> ForwardCall:
    others = [[(7 * i + j) % 120 for j in range(length)] for i in range(n - 1)]
    return ForwardCall.from_rows([ROW, *others], **kwargs)  # type: ignore[arg-type]


def swap(module: nn.Module, forward: Callable[..., Tensor]) -> None:
    """Replace the forward; the old one comes first in the new one's arguments."""
    old = module.forward
    module.forward = lambda *args, **kwargs: forward(old, *args, **kwargs)


# -- faults that show from run to run -------------------------------------------------------------


def torch_order_race(model: nn.Module) -> None:
    mlp = model.model.layers[1].mlp

    def forward(old: Callable[..., Tensor], x: Tensor) -> Tensor:
        h = mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x)
        weight = mlp.down_proj.weight
        parts = [h[..., c] @ weight[:, c].T for c in torch.randperm(h.shape[-1]).split(8)]
        return torch.stack(parts).sum(0)

    swap(mlp, forward)


def python_order_race(model: nn.Module) -> None:
    mlp = model.model.layers[1].mlp

    def forward(old: Callable[..., Tensor], x: Tensor) -> Tensor:
        h = mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x)
        weight = mlp.down_proj.weight
        parts = [h[..., i : i + 8] @ weight[:, i : i + 8].T for i in range(0, 48, 8)]
        random.shuffle(parts)
        out = parts[0]
        for part in parts[1:]:
            out = out + part
        return out

    swap(mlp, forward)


def attention_noise(model: nn.Module) -> None:
    def noisy(module: nn.Module, args: object, out: tuple) -> tuple:
        return (out[0] + torch.randn_like(out[0]) * 1e-4, *out[1:])

    model.model.layers[2].self_attn.register_forward_hook(noisy)


def dropout_on(model: nn.Module) -> None:
    for block in model.model.layers:
        block.self_attn.attention_dropout = 0.1
        block.self_attn.training = True


def other_thread(model: nn.Module) -> None:
    mlp = model.model.layers[0].mlp

    def forward(old: Callable[..., Tensor], x: Tensor) -> Tensor:
        out: list[Tensor] = []

        def work() -> None:
            with torch.no_grad():
                out.append(old(x) * (1 + random.random() * 1e-3))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return out[0]

    swap(mlp, forward)


def buffer_state(model: nn.Module) -> None:
    mlp = model.model.layers[1].mlp
    mlp.register_buffer("average", torch.zeros(32))

    def forward(old: Callable[..., Tensor], x: Tensor) -> Tensor:
        out = old(x)
        mlp.average.mul_(0.9).add_(out.mean((0, 1)) * 0.1)
        return out + mlp.average * 1e-2

    swap(mlp, forward)


def counter_state(model: nn.Module) -> None:
    mlp = model.model.layers[1].mlp
    mlp.calls = 0

    def forward(old: Callable[..., Tensor], x: Tensor) -> Tensor:
        mlp.calls += 1
        return old(x) * (1 + mlp.calls * 1e-4)

    swap(mlp, forward)


# -- faults that show across batches --------------------------------------------------------------


def token_count_norm(model: nn.Module) -> None:
    norm = model.model.layers[1].input_layernorm

    def forward(old: Callable[..., Tensor], x: Tensor) -> Tensor:
        if x.shape[0] * x.shape[1] <= 24:
            return old(x)
        total = sum(c.sum(-1, keepdim=True) for c in x.float().pow(2).split(8, -1))
        scale = torch.rsqrt(total / x.shape[-1] + norm.variance_epsilon)
        return norm.weight * (x.float() * scale).to(x.dtype)

    swap(norm, forward)


def batch_scale(model: nn.Module) -> None:
    for block in model.model.layers[:1]:

        def forward(old: Callable[..., Tensor], x: Tensor) -> Tensor:
            scale = x.abs().amax() / 127
            return old(torch.round(x / scale) * scale)

        swap(block.mlp, forward)


class CapacityExperts(nn.Module):
    """Top-1 experts with a capacity over the whole batch: late tokens are dropped."""

    def __init__(self, hidden: int, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, hidden = x.shape
        flat = x.reshape(-1, hidden)
        chosen = self.router(flat).argmax(-1)
        one_hot = F.one_hot(chosen, len(self.experts))
        place = (one_hot.cumsum(0) * one_hot).sum(-1) - 1
        keep = place < max(1, tokens // 3)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            index = ((chosen == i) & keep).nonzero().flatten()
            out.index_add_(0, index, expert(flat[index]))
        return out.reshape(rows, tokens, hidden)


def expert_capacity(model: nn.Module) -> None:
    torch.manual_seed(3)
    model.model.layers[1].mlp = CapacityExperts(32).eval()


def neighbour_mean(model: nn.Module) -> None:
    def leak(module: nn.Module, args: object, out: tuple) -> tuple:
        return (out[0] + out[0].mean(0, keepdim=True) * 1e-3, *out[1:])

    model.model.layers[0].self_attn.register_forward_hook(leak)


class Fault(TorchDispatchMode):
    """One-ULP noise on the result of one operator call of one module."""

    def __init__(self, site: tuple[str, str, int], stack: object, seed: int, batched: bool) -> None:
        super().__init__()
        self.site, self.stack, self.batched = site, stack, batched
        self.random = torch.Generator().manual_seed(seed)
        self.seen = 0
        self.frame: object = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name, path, occurrence = self.site
        frame = self.stack.top  # type: ignore[attr-defined]
        info = op_info(func)
        if info.name != name or frame.path != path or not isinstance(out, Tensor):
            return out
        if renames(named_tensors(info, args, kwargs), [out]):
            return out
        self.seen = self.seen + 1 if frame == self.frame else 0
        self.frame = frame
        if self.seen != occurrence or (self.batched and out.shape[0] == 1):
            return out
        return self._nudged(out)

    def _nudged(self, out: Tensor) -> Tensor:
        width = {2: torch.int16, 4: torch.int32}[out.element_size()]
        if self.batched:
            step = torch.ones(out.shape, dtype=width)
        else:
            step = torch.randint(0, 2, out.shape, generator=self.random).to(width)
        return (out.contiguous().view(width) + step).view(out.dtype)


@contextlib.contextmanager
def fault(
    model: nn.Module, site: tuple[str, str, int], *, seed: int = 0, batched: bool = False
) -> Iterator[None]:
    """Plant :class:`Fault` below everything that is opened later."""
    with tracked(model) as stack, Fault(site, stack, seed, batched):
        yield
