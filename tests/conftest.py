"""Shared fixtures: offline, one thread, and the embedded models loaded once a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session", autouse=True)
def _module_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Code of planted models is copied here, not into the user's own cache."""
    os.environ["HF_MODULES_CACHE"] = str(tmp_path_factory.mktemp("hf-modules"))


@cache
def _load(name: str, dtype: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from detdiag.demo import demo_path

    torch.set_num_threads(1)
    path = demo_path(name)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    return model, AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="session")
def load_demo() -> Callable[..., tuple[Any, Any]]:
    """``load_demo("dense", "bfloat16") -> (model, tokenizer)``, cached; do not change it."""
    return _load


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct, named by ``DETDIAG_SMOLLM2``."""
    folder = os.environ.get("DETDIAG_SMOLLM2")
    if not folder:
        pytest.skip("DETDIAG_SMOLLM2 names no folder")
    return Path(folder)
