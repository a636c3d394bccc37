"""The faults that ``--demo-fault`` can plant, one entry a mechanism.

Unless a fault says otherwise the demo model is served batch-invariantly, so that on any processor
the planted fault is the only thing that can differ. Choosing a module here decides where a prober
has to arrive; nothing on the way tells it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from detdiag.demo.cases import (
    DemoCase,
    Fault,
    Patch,
    copy_model,
    demo_path,
    demo_prompts,
    edit_json,
    fingerprint_of,
)
from detdiag.demo.prompts import DEMO_CHATS, DEMO_PROMPTS
from detdiag.layers import Layer
from detdiag.targets.prompts import Prompt

MLP: Final = "model.layers.1.mlp.down_proj"
LAST_MLP: Final = "model.layers.3.mlp.down_proj"
"""Its largest activation depends on the text; in earlier blocks the begin token has it."""
ATTENTION: Final = "model.layers.2.self_attn.o_proj"
ROUTER: Final = "model.layers.1.mlp.gate"
TIED_EXPERTS: Final = (0, 5)
"""Of this router: one that is often second, and one that is hardly ever chosen."""
ULP_TENSOR: Final = "model.layers.1.post_attention_layernorm.weight"
BOM: Final = "\ufeff"

Apply = Callable[[Path], DemoCase]


PLANTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "batch-effect": ((MLP, "SplitByTokenCount"),),
    "padding": (("", "PaddingSeen"),),
    "neighbour-scale": ((LAST_MLP, "SharedScale"),),
    "state": ((LAST_MLP, "CarriedScale"),),
    "race": ((MLP, "RandomOrderSum"),),
    "race-attention": ((ATTENTION, "RandomOrderSum"),),
    "dropout": (("model.layers.2.mlp", "DropoutLeftOn"),),
    "tie": (("", "TieByDraw"),),
    "expert-capacity": ((ROUTER, "LimitedCapacity"),),
    "router-tie": ((ROUTER, "UnstableTopK"),),
    "two-faults": ((MLP, "RandomOrderSum"),),
}
"""Module path (empty: the model itself) and the class of ``detdiag.demo.faulty`` in front of it.
A fault that is not here lies in files, not in arithmetic."""


def serving(name: str) -> Patch:
    """Serve a model batch-invariantly, with the modules of fault ``name`` replaced, while open."""

    @contextlib.contextmanager
    def patch(model: Any) -> Iterator[None]:
        from detdiag.demo import faulty
        from detdiag.demo.invariant import batch_invariant, swapped

        plants = PLANTS.get(name, ())
        fronts = {model.get_submodule(path): getattr(faulty, front) for path, front in plants}
        with batch_invariant(model), swapped(fronts):
            yield

    return patch


def serve(name: str, model: Any) -> None:
    """:func:`serving` for as long as the process lives, as a server would."""
    context = serving(name)(model)
    context.__enter__()
    atexit.register(context.__exit__, None, None, None)


def _dense(name: str, **fields: Any) -> DemoCase:
    fields.setdefault("model_dir", demo_path("dense"))
    fields.setdefault("prompts", demo_prompts(DEMO_PROMPTS))
    return DemoCase(name=name, patch=serving(name), **fields)


def _in_module(name: str, layer: Layer, model: str = "dense") -> Apply:
    def apply(work: Path) -> DemoCase:
        path = PLANTS[name][0][0]
        return _dense(
            name, model_dir=demo_path(model), expected_layer=layer, expected_module=path or None
        )

    return apply


def _none(work: Path) -> DemoCase:
    return _dense("none")


def _sampling_on(work: Path) -> Path:
    folder = copy_model("dense", work)

    def change(config: dict[str, Any]) -> None:
        config |= {"do_sample": True, "temperature": 0.8, "top_p": 0.95}

    edit_json(folder / "generation_config.json", change)
    return folder


def _sampling(work: Path) -> DemoCase:
    return _dense("sampling", model_dir=_sampling_on(work), expected_layer="config")


def _two_faults(work: Path) -> DemoCase:
    return _dense(
        "two-faults",
        model_dir=_sampling_on(work),
        expected_layer="config",
        expected_module=MLP,
        also=("operator",),
    )


def _request(path: Path, question: str) -> Path:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 32,
    }
    path.write_bytes(json.dumps(body, ensure_ascii=False).encode("utf-8"))
    return path


def _bom(work: Path) -> DemoCase:
    """Two clients ask the same; one of them read its prompt from a file that starts with a BOM."""
    question = DEMO_CHATS[0]
    requests = (
        _request(work / "request_a.json", question),
        _request(work / "request_b.json", BOM + question),
    )
    asked = ({"role": "user", "content": question},)
    return _dense(
        "bom",
        prompts=(Prompt("p1", None, asked), *demo_prompts(DEMO_PROMPTS)[1:3]),
        scratch={"requests": requests},
        expected_layer="input",
    )


def _template_clock(work: Path) -> DemoCase:
    """The chat template prints the time, so no two renders of one conversation agree."""
    folder = copy_model("dense", work)
    template = folder / "chat_template.jinja"
    clock = "<|user|>\nit is {{ strftime_now('%H:%M:%S.%f') }}<|end|>\n"
    begin = "{{ bos_token }}"
    template.write_text(template.read_text("utf-8").replace(begin, begin + clock), "utf-8")
    prompts = tuple(
        Prompt(f"p{i}", None, ({"role": "user", "content": question},))
        for i, question in enumerate(DEMO_CHATS, start=1)
    )
    return _dense("template-clock", model_dir=folder, prompts=prompts, expected_layer="input")


def _tie(work: Path) -> DemoCase:
    """Bfloat16 logits of this size lie 1/16 apart, so equal maxima come up by themselves."""
    return _dense("tie", expected_layer="decode")


def _router_tie(work: Path) -> DemoCase:
    """A dense model grown into experts keeps copies of a router row: those experts tie for ever."""
    from safetensors.torch import load_file, save_file

    folder = copy_model("moe", work)
    tensors = load_file(folder / "model.safetensors")
    rows = tensors[f"{ROUTER}.weight"]
    kept, copy = TIED_EXPERTS
    rows[copy] = rows[kept]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return _dense("router-tie", model_dir=folder, expected_layer="moe", expected_module=ROUTER)


def _weights(work: Path) -> DemoCase:
    """One unit in the last place of one weight, against the fingerprint of the released model."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = copy_model("dense", work)
    tensors = load_file(folder / "model.safetensors")
    tensors[ULP_TENSOR].view(torch.int16)[0] += 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return _changed("weights", folder)


def _tokenizer(work: Path) -> DemoCase:
    """A rebuilt tokenizer lost its last merges: the same words, cut into other tokens."""
    folder = copy_model("dense", work)

    def change(config: dict[str, Any]) -> None:
        merges = config["model"]["merges"]
        del merges[len(merges) // 2 :]

    edit_json(folder / "tokenizer.json", change)
    return _changed("tokenizer", folder)


def _changed(name: str, folder: Path) -> DemoCase:
    baseline = fingerprint_of(demo_path("dense"))
    return _dense(name, model_dir=folder, baseline=baseline, expected_layer="version")


_ALL: Final = (
    Fault("none", None, "healthy control: served batch-invariantly, greedy", _none),
    Fault("sampling", "config", "generation_config.json still samples", _sampling),
    Fault("bom", "input", "a second client sends a BOM before the prompt", _bom),
    Fault("template-clock", "input", "the chat template prints the time", _template_clock),
    Fault(
        "batch-effect",
        "batch",
        "a reduction is split by the number of tokens in the batch",
        _in_module("batch-effect", "batch"),
    ),
    Fault(
        "padding",
        "batch",
        "padded rows are run without mask and position ids",
        _in_module("padding", "batch"),
    ),
    Fault(
        "neighbour-scale",
        "batch",
        "int8 activations share one scale over the whole batch",
        _in_module("neighbour-scale", "batch"),
    ),
    Fault(
        "state",
        "batch",
        "an activation scale is averaged over earlier calls",
        _in_module("state", "batch"),
    ),
    Fault(
        "race",
        "operator",
        "partial sums are added in no fixed order",
        _in_module("race", "operator"),
    ),
    Fault(
        "race-attention",
        "operator",
        "the attention output projection adds in no fixed order",
        _in_module("race-attention", "operator"),
    ),
    Fault(
        "dropout",
        "operator",
        "dropout is left on after one MLP",
        _in_module("dropout", "operator"),
    ),
    Fault("tie", "decode", "equal maxima are resolved by draw", _tie),
    Fault(
        "expert-capacity",
        "moe",
        "experts have a fixed number of slots a batch",
        _in_module("expert-capacity", "moe", "moe"),
    ),
    Fault(
        "router-tie",
        "moe",
        "experts with equal scores are chosen in no fixed order",
        _router_tie,
    ),
    Fault("weights", "version", "one weight differs by one unit in the last place", _weights),
    Fault("tokenizer", "version", "the tokenizer lost half of its merges", _tokenizer),
    Fault("two-faults", "config", "sampling is left on and a reduction races", _two_faults),
)

FAULTS: Final[dict[str, Fault]] = {fault.name: fault for fault in _ALL}
DEFAULT_FAULT: Final = "batch-effect"
"""What ``--demo`` plants when nothing is named."""
