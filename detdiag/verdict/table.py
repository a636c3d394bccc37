"""Observations as a pandas table: one row each, one column per bundle of factors.

A *bundle* is one condition that can be varied: usually one factor; factors that are one thing
under several names (:data:`LINKED`) share a bundle. What a factor merely carries along (token
ids that follow the tokenizer, request bytes that follow the client) is a mediator, no bundle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from detdiag.evidence.observation import Observation
from detdiag.inputs.canonical import (
    ordered_digest,
    prompt_part,
    request_digest,
    sampling_parameters,
)
from detdiag.layers import CONTROL_FACTOR, FACTOR_LAYERS, ORDER_FACTORS, layer_rank
from detdiag.verdict.outcome import Level, channels_of, classify

LINKED: Final[dict[str, tuple[str, ...]]] = {
    "load": ("batch_size", "concurrency", "in_flight_tokens", "neighbours"),
    "padding": ("padding_side", "padded_length"),
    "cache": ("cached_tokens", "prefix_cache"),
    "replica": ("replica", "provider", "system_fingerprint", "model_reported"),
    "weights": ("weights_digest", "quantisation"),
}
"""Factors that move together by construction: they are one condition, not a confounding."""

UNRECORDED: Final = "(not recorded)"
LABELS: Final = frozenset({"process", "replica", "order", "seed", "repeat"})
"""Factors whose values are names, not doses: shown inert inside two arms, they may be pooled."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """``factors`` are the names that vary; ``column`` is the table's column."""

    column: str
    factors: tuple[str, ...]
    layer: str

    @property
    def label(self) -> str:
        return " + ".join(self.factors)


@dataclass(frozen=True, slots=True)
class Table:
    """``frame`` has columns query, bits, output (outcome classes, comparable where bits_channels
    or output_channels agree), observation (position in
    ``observations``), role and one per bundle. ``constant`` are factors recorded with one value."""

    frame: pd.DataFrame
    observations: tuple[Observation, ...]
    bundles: tuple[Bundle, ...]
    constant: Mapping[str, Any]
    mediators: Mapping[str, tuple[str, ...]]

    def bundle(self, column: str) -> Bundle:
        return next(b for b in self.bundles if b.column == column)


def canonical_value(value: Any) -> str:
    """One spelling per value: integral floats as integers, object keys sorted."""
    return json.dumps(_normal(value), sort_keys=True, ensure_ascii=False, default=str)


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(k): _normal(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_normal(v) for v in value]
    return value


def query_of(observation: Observation) -> str:
    """The question an observation answers: its ``query``, else its canonical request."""
    if observation.query is not None:
        return observation.query
    if observation.request is not None:
        return request_digest(observation.request)
    return "(one query)"


def ordered_prompt_digest(request: Mapping[str, Any]) -> str | None:
    """Digest of what a template renders from a request; key order inside tools and content
    counts, key order of the message objects themselves does not."""
    part = prompt_part(request)
    return ordered_digest(part)[7:23] if part else None


def build_table(
    observations: Sequence[Observation], factor_layers: Mapping[str, str] | None = None
) -> Table:
    """Build the table; ``factor_layers`` places factors that are outside the known ones."""
    kept = tuple(observations)
    raw = pd.DataFrame([_conditions(o) for o in kept], dtype=object)
    raw = raw.where(raw.notna(), UNRECORDED) if len(raw.columns) else raw
    frame = pd.DataFrame(
        {
            "observation": range(len(kept)),
            "query": [query_of(o) for o in kept],
            "role": [o.role for o in kept],
        }
    )
    _add_classes(frame, kept)
    layers = {**FACTOR_LAYERS, **(factor_layers or {})}
    varying = [c for c in raw.columns if _varies_within_query(raw[c], frame["query"])]
    constant = {
        c: raw[c].iloc[0]
        for c in raw.columns
        if raw[c].nunique() == 1 and raw[c].iloc[0] != UNRECORDED
    }
    bundles, mediators = _bundle(raw, varying, layers, frame)
    for bundle in bundles:
        frame[bundle.column] = _joined(raw, bundle.factors)
    return Table(frame, kept, bundles, constant, mediators)


def _conditions(observation: Observation) -> dict[str, str]:
    """Every condition of one observation; what is derived from the request starts with ``~``."""
    out = {
        name: canonical_value(value)
        for name, value in observation.factors.items()
        if name != CONTROL_FACTOR and name not in ORDER_FACTORS
    }
    request = observation.request
    if request is not None:
        digest = ordered_prompt_digest(request)
        if digest is not None and "prompt_digest" not in out:
            out["~prompt_digest"] = digest
        if "effective_params" not in out:
            for name, value in sampling_parameters(request).items():
                if name not in out:
                    out[f"~{name}"] = canonical_value(value)
        model = request.get("model")
        if isinstance(model, str) and not {"weights_digest", "model_reported"} & out.keys():
            out["~model"] = model
    if observation.prompt_token_ids is not None:
        out["~prompt_token_ids"] = canonical_value(observation.prompt_token_ids)
    return out


def _add_classes(frame: pd.DataFrame, observations: tuple[Observation, ...]) -> None:
    """Outcome classes per level, and the channels that each observation carries at that level."""
    levels: tuple[Level, ...] = ("bits", "output")
    for level in levels:
        channels = [channels_of(o.output, level) for o in observations]
        groups: dict[tuple[str, str], list[int]] = {}
        for index, query in enumerate(frame["query"]):
            groups.setdefault((query, channels[index]), []).append(index)
        classes = [-1] * len(observations)
        for members in groups.values():
            found = classify([observations[i] for i in members], level=level)
            for index, value in zip(members, found, strict=True):
                classes[index] = value
        frame[level] = classes
        frame[f"{level}_channels"] = channels


def _varies_within_query(column: pd.Series, query: pd.Series) -> bool:
    return bool((column.groupby(query).nunique() > 1).any())


def _joined(raw: pd.DataFrame, factors: Sequence[str]) -> pd.Series:
    columns = [f if f in raw.columns else f"~{f}" for f in factors]
    if len(columns) == 1:
        return raw[columns[0]]
    joined = pd.Series(
        [
            ", ".join(f"{n}={v}" for n, v in zip(factors, row, strict=True))
            for row in raw[columns].itertuples(index=False)
        ],
        index=raw.index,
    )
    unrecorded = (raw[columns] == UNRECORDED).all(axis=1)
    return joined.where(~unrecorded, UNRECORDED)


def _determined(target: pd.Series, by: pd.DataFrame, query: pd.Series) -> bool:
    """Is ``target`` constant wherever the query and all of ``by`` are?"""
    keys = [query, *(by[c] for c in by.columns)]
    return bool((target.groupby(keys).nunique() <= 1).all())


def _bundle(
    raw: pd.DataFrame, varying: list[str], layers: Mapping[str, str], frame: pd.DataFrame
) -> tuple[tuple[Bundle, ...], dict[str, tuple[str, ...]]]:
    query = frame["query"]
    names = list(varying)
    mediators: dict[str, tuple[str, ...]] = {}
    if "client" in names:
        derived = [n for n in names if n.startswith("~") and n != "~prompt_token_ids"]
        if derived and _determined(raw["client"], raw[derived], query):
            names.remove("client")
            mediators["client"] = tuple(n[1:] for n in derived)
    inputs = [n for n in names if not n.startswith("~") and layers.get(n) == "input"]
    if (
        "~prompt_digest" in names
        and inputs
        and _determined(raw["~prompt_digest"], raw[inputs], query)
    ):
        names.remove("~prompt_digest")
        mediators["prompt_digest"] = tuple(inputs)
    if "~prompt_token_ids" in names:
        others = [n for n in names if n != "~prompt_token_ids"]
        if others and _determined(raw["~prompt_token_ids"], raw[others], query):
            names.remove("~prompt_token_ids")
            mediators["prompt_token_ids"] = tuple(n.lstrip("~") for n in others)
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(_link_of(name.lstrip("~")), []).append(name.lstrip("~"))
    bundles = [
        Bundle(f"f:{key}", tuple(fs), _layer_of(fs[0], layers)) for key, fs in grouped.items()
    ]
    return tuple(sorted(bundles, key=lambda b: (layer_rank(b.layer), b.column))), mediators


def _link_of(factor: str) -> str:
    return next((group for group, names in LINKED.items() if factor in names), factor)


def _layer_of(factor: str, layers: Mapping[str, str]) -> str:
    if factor == "prompt_token_ids":
        return "input"
    if factor == "model":
        return "version"
    return layers.get(factor, "unknown")
