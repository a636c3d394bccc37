"""What a demo fault hands to the engine, and how a planted model folder is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from detdiag.layers import Layer
from detdiag.targets.prompts import Prompt, text_prompts

DEMO_DIR: Final = Path(__file__).parent

Patch = Callable[[Any], AbstractContextManager[Any]]
"""Takes the loaded model; the fault is in it while the context is open."""


@dataclass(frozen=True, slots=True)
class DemoCase:
    """A run with (or without) a planted fault.

    ``baseline``: fingerprint of the signed-off model, where the fault is one of version.
    ``scratch["requests"]``: two request files of two clients that should have been one.
    ``expected_module``: path of the module the fault sits in. The ``expected_`` and ``also``
    fields are for tests and for telling the user what was planted; no probe reads them.
    """

    name: str
    model_dir: Path
    prompts: tuple[Prompt, ...]
    generate_kwargs: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] | None = None
    patch: Patch | None = None
    scratch: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"
    trust_remote_code: bool = False
    expected_layer: Layer | None = None
    expected_module: str | None = None
    also: tuple[Layer, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by name. ``layer`` is None for the healthy control; ``apply`` prepares a run in an
    empty folder."""

    name: str
    layer: Layer | None
    summary: str
    apply: Callable[[Path], DemoCase]


def demo_path(name: str) -> Path:
    """Folder of an embedded model, ``"dense"`` or ``"moe"``; raises KeyError for another name."""
    if name not in ("dense", "moe"):
        raise KeyError(name)
    return DEMO_DIR / name


def copy_model(name: str, work: Path) -> Path:
    """A private copy of an embedded model, to be changed."""
    return Path(shutil.copytree(demo_path(name), work / name))


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Load, change in place and write back one JSON file."""
    value = json.loads(path.read_text("utf-8"))
    change(value)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def fingerprint_of(model_dir: Path) -> dict[str, Any]:
    """The fingerprint that ``detdiag fingerprint --model`` writes."""
    from detdiag.fingerprint.collect import fingerprint

    return fingerprint(model_dir)


def demo_prompts(texts: tuple[str, ...]) -> tuple[Prompt, ...]:
    """Plain-text prompts ``p1``, ``p2`` ..."""
    return text_prompts(texts)
