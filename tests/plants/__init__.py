"""Planted models: folders that ``detdiag run --model DIR --trust-remote-code`` must see through.

Every entry of ``PLANTS`` writes one folder into a directory and says what a diagnosis has to
name. ``batch_sizes`` limits a run to the conditions under which the claim holds on any processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.demo import DEMO_PROMPTS
from detdiag.layers import Layer
from tests.plants import build

PROMPTS: Final = (DEMO_PROMPTS[3], DEMO_PROMPTS[0], DEMO_PROMPTS[4])


@dataclass(frozen=True, slots=True)
class Plant:
    """A planted model. ``layer`` None means healthy. ``modules``: paths any of which is a right
    place (a parent that contains the fault and the child that computes it); empty where the fault
    sits in no module. ``baseline``: folder of the model as signed off. ``also``: layers of
    further faults. ``not_layers``: layers that must not be named."""

    name: str
    path: Path
    layer: Layer | None
    modules: tuple[str, ...] = ()
    prompts: tuple[str, ...] = PROMPTS
    baseline: Path | None = None
    trust_remote_code: bool = True
    dtype: str = "float32"
    also: tuple[Layer, ...] = ()
    batch_sizes: tuple[int, ...] = (1, 2, 4)
    generate_kwargs: dict[str, Any] | None = None

    @property
    def not_layers(self) -> frozenset[str]:
        """Layers whose naming would be a wrong accusation."""
        from detdiag.layers import LAYERS

        return frozenset(LAYERS) - {self.layer, *self.also}


Factory = Callable[..., Plant]


def coded(
    name: str,
    layer: Layer | None,
    *planted: str,
    modules: tuple[str, ...] = (),
    kind: str = "dense",
    source: str | None = None,
    generation: dict[str, Any] | None = None,
    weights: Callable[[dict[str, Any]], None] | None = None,
    **facts: Any,
) -> Factory:
    """A factory for a fault that lives in the folder's modelling code."""

    def make(root: Path, base: str = "random", dtype: str = "float32") -> Plant:
        folder = build.base_folder(root / f"{name}-{base}-{dtype}", kind, base, dtype)
        build.plant_code(folder, source or kind, planted)
        if generation:
            build.edit(folder / "generation_config.json", **generation)
        if weights:
            build.edit_weights(folder, weights)
        return Plant(name, folder, layer, modules, dtype=dtype, **facts)

    return make


def _mlp(block: int = 1) -> tuple[str, ...]:
    path = f"model.layers.{block}.mlp"
    return (path, f"{path}.down_proj")


def _sampling(root: Path, base: str = "random", dtype: str = "float32") -> Plant:
    folder = build.base_folder(root / f"sampling-{base}-{dtype}", "dense", base, dtype)
    build.edit(folder / "generation_config.json", do_sample=True, temperature=0.7, top_p=0.9)
    return Plant("sampling", folder, "config", trust_remote_code=False, dtype=dtype)


def _pair(name: str, change: Callable[[Path, str], None]) -> Factory:
    def make(root: Path, base: str = "random", dtype: str = "float32") -> Plant:
        released = build.base_folder(root / f"{name}-{base}-{dtype}-released", "dense", base, dtype)
        folder = build.base_folder(root / f"{name}-{base}-{dtype}", "dense", base, dtype)
        change(folder, base)
        return Plant(
            name,
            folder,
            "version",
            baseline=released,
            trust_remote_code=False,
            dtype=dtype,
            batch_sizes=(1,),
        )

    return make


def _one_ulp(folder: Path, base: str) -> None:
    build.add_ulp(folder, "model.layers.1.mlp.up_proj.weight", 5)


def _fewer_merges(folder: Path, base: str) -> None:
    import json

    file = folder / "tokenizer.json"
    spec = json.loads(file.read_text())
    del spec["model"]["merges"][60:]
    file.write_text(json.dumps(spec))


def _same_gate_rows(tensors: dict[str, Any]) -> None:
    """Experts 0 to 3 score alike and so do 4 to 7: with two chosen, ranks 2 and 3 always tie."""
    for name in list(tensors):
        if name.endswith("mlp.gate.weight"):
            tensors[name][1:4] = tensors[name][0]
            tensors[name][5:8] = tensors[name][4]


def _same_head_rows(tensors: dict[str, Any]) -> None:
    """Tokens 2j and 2j + 1 above the special ones have equal logits."""
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    head[9::2] = head[8::2]


ROUTER: Final = ("model.layers.1.mlp", "model.layers.1.mlp.gate")
NORM: Final = ("model.layers.1.input_layernorm",)
ATTENTION: Final = ("model.layers.1.self_attn", "model.layers.1.self_attn.o_proj")
SAMPLES: Final = {"do_sample": True, "temperature": 1.1}

_FACTORIES: Final[dict[str, Factory]] = {
    "race-permuted": coded("race-permuted", "operator", "permuted-sum", modules=_mlp()),
    "race-urandom": coded("race-urandom", "operator", "urandom-sum", modules=_mlp()),
    "race-threads": coded("race-threads", "operator", "threaded-sum", modules=_mlp()),
    "race-clock": coded("race-clock", "operator", "jitter", modules=_mlp(2)),
    "race-attention": coded("race-attention", "operator", "racy-attention", modules=ATTENTION),
    "dropout": coded("dropout", "operator", "dropout", modules=_mlp()),
    "stuck-in-training": coded(
        "stuck-in-training", "operator", "stuck-in-training", modules=("model.layers.0.self_attn",)
    ),
    "token-count-norm": coded("token-count-norm", "batch", "token-count-norm", modules=NORM),
    "token-count-norm-16": coded(
        "token-count-norm-16", "batch", "token-count-norm-16", modules=NORM
    ),
    "batch-int8": coded("batch-int8", "batch", "batch-int8", modules=_mlp()),
    "no-mask": coded("no-mask", "batch", "no-mask"),
    "no-positions": coded("no-positions", "batch", kind="absolute"),
    "state-previous-call": coded("state-previous-call", "batch", "previous-call", modules=_mlp()),
    "state-counter": coded("state-counter", "batch", "counting", modules=_mlp()),
    "state-peak": coded("state-peak", "batch", "peak-scale", modules=_mlp()),
    "tie-by-draw": coded("tie-by-draw", "decode", "tie-by-draw", weights=_same_head_rows),
    "capacity-block": coded("capacity-block", "moe", "capacity-block", kind="moe", modules=ROUTER),
    "capacity-router": coded(
        "capacity-router", "moe", "capacity-router", kind="moe", modules=ROUTER
    ),
    "router-ties": coded(
        "router-ties", "moe", "router-ties", kind="moe", modules=ROUTER, weights=_same_gate_rows
    ),
    "router-ties-by-place": coded(
        "router-ties-by-place",
        "moe",
        "router-ties-by-place",
        kind="moe",
        modules=ROUTER,
        weights=_same_gate_rows,
    ),
    "sampling": _sampling,
    "weights-ulp": _pair("weights-ulp", _one_ulp),
    "tokenizer": _pair("tokenizer", _fewer_merges),
    "two-sampling-and-race": coded(
        "two-sampling-and-race",
        "config",
        "urandom-sum",
        modules=_mlp(),
        generation=SAMPLES,
        also=("operator",),
    ),
    "two-norm-and-race": coded(
        "two-norm-and-race",
        "batch",
        "token-count-norm",
        "urandom-sum",
        modules=NORM + _mlp(),
        also=("operator",),
    ),
    "healthy": coded("healthy", None, source="healthy"),
}

NAMES: Final = tuple(_FACTORIES)


def make(name: str, root: Path, *, base: str = "random", dtype: str = "float32") -> Plant:
    """Write plant ``name`` below ``root`` on a tiny random model or a demo model (``base``)."""
    if name == "no-positions":
        base = "random"
    return _FACTORIES[name](root, base, dtype)
