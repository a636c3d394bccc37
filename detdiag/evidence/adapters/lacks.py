"""Channels that evidence can have, and which of them a file does not have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from detdiag.evidence.observation import Observation
from detdiag.inputs.canonical import prompt_part, sampling_parameters

Test = Callable[[Observation], bool]


def _factor(*names: str) -> Test:
    return lambda one: any(one.factors.get(name) is not None for name in names)


def _prompt(one: Observation) -> bool:
    return one.request is not None and any(prompt_part(one.request).values())


def _parameter(name: str) -> Test:
    return lambda one: name in sampling_parameters(one.request or {})


def _logprobs(one: Observation) -> bool:
    return any(p.logprob is not None for p in one.output.positions or ())


def _alternatives(one: Observation) -> bool:
    return any(p.top for p in one.output.positions or ())


CHANNELS: Final[Mapping[str, Test]] = {
    "prompt": _prompt,
    "temperature": _parameter("temperature"),
    "seed": _parameter("seed"),
    "text": lambda one: one.output.text is not None,
    "token ids": lambda one: one.output.token_ids is not None,
    "prompt token ids": lambda one: one.prompt_token_ids is not None,
    "log-probabilities": _logprobs,
    "alternatives": _alternatives,
    "expert routing": lambda one: one.routing is not None,
    "batch": _factor("batch_size", "row", "neighbours", "padded_length"),
    "concurrency": _factor("concurrency"),
    "cached tokens": _factor("cached_tokens"),
    "fingerprint": _factor("system_fingerprint"),
    "replica": _factor("replica"),
    "provider": _factor("provider"),
    "time": _factor("time"),
}
"""Channel name to the test that one observation has it."""

_FACTOR_CHANNELS: Final = {"system_fingerprint": "fingerprint", "provider": "provider"}

LAYER_CHANNELS: Final[Mapping[str, tuple[str, ...]]] = {
    "config": ("temperature",),
    "input": ("prompt", "prompt token ids"),
    "batch": ("batch", "concurrency", "cached tokens"),
    "operator": ("log-probabilities", "token ids"),
    "decode": ("alternatives",),
    "moe": ("expert routing",),
    "version": ("fingerprint", "replica", "provider"),
}
"""Channels that speak about a layer; a layer with none of its channels is untested."""


def absent_channels(
    observations: Sequence[Observation],
    never: Sequence[str] = (),
    recorded: Collection[str] = (),
) -> tuple[str, ...]:
    """Channels that no observation has, in the order of :data:`CHANNELS`; ``never`` (what the
    format cannot carry) first where it names something beyond them. ``recorded`` names factors that
    the file has under another name."""
    known = {_FACTOR_CHANNELS.get(name) for name in recorded}
    extra = [name for name in never if name not in CHANNELS]
    absent = [
        name
        for name, test in CHANNELS.items()
        if name not in known and not any(test(one) for one in observations)
    ]
    return tuple(extra + absent)


def untested_layers(lacks: Sequence[str]) -> tuple[str, ...]:
    """Layers about which the evidence has no channel at all."""
    missing = set(lacks)
    return tuple(
        layer for layer, channels in LAYER_CHANNELS.items() if missing.issuperset(channels)
    )
