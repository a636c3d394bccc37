"""Load a causal LM and its tokenizer; every failure becomes one clear line."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from detdiag.errors import DetdiagError

DTYPES: Final = {
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
    "fp32": torch.float32,
    "float64": torch.float64,
}


def resolve_dtype(name: str | None) -> Any:
    """The torch dtype of ``name``; ``"auto"`` (the checkpoint's own) for None."""
    if name is None or name == "auto":
        return "auto"
    try:
        return DTYPES[name.removeprefix("torch.")]
    except KeyError:
        close = difflib.get_close_matches(name, DTYPES, n=1)
        tip = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(DTYPES)}"
        raise DetdiagError(f"unknown dtype {name!r}", tip=tip) from None


def resolve_device(name: str | None) -> str:
    """``name`` checked against this machine; the first accelerator, else the CPU, for None."""
    if name is None or name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise DetdiagError(f"device {name!r} cannot be used here: {_first_line(error)}") from error
    return str(device)


def resolve_path(path_or_id: str | Path) -> Path | None:
    """The folder of a local model, or None for a hub id; raise when a folder holds no model."""
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise DetdiagError(
                "no model here: config.json is missing",
                path=path,
                tip="name the folder that holds config.json and the weights",
            )
        return path
    text = str(path_or_id)
    if path.exists() or text.startswith((".", "~", os.sep)) or text.count("/") > 1:
        raise DetdiagError("not a model folder", path=text)
    return None


def load_model(source: str, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """``(model, loading info)`` from AutoModelForCausalLM, progress bars and warnings off."""
    from transformers import AutoModelForCausalLM

    with quiet_transformers(), _one_line(source, "load the model"):
        model, info = AutoModelForCausalLM.from_pretrained(
            source, output_loading_info=True, **kwargs
        )
    return model, info


def load_tokenizer(source: str, **kwargs: Any) -> Any:
    """The tokenizer beside the model; raise where there is none."""
    from transformers import AutoTokenizer

    with quiet_transformers(), _one_line(source, "load the tokenizer"):
        return AutoTokenizer.from_pretrained(source, **kwargs)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Progress bars and warnings of transformers off; its settings restored on exit."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _one_line(source: str, what: str) -> Iterator[None]:
    try:
        yield
    except DetdiagError:
        raise
    except Exception as error:  # noqa: BLE001  (remote code and checkpoints raise anything)
        raise DetdiagError(
            f"cannot {what}: {_first_line(error)}", path=source, tip=_tip(error, source)
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:240] if lines else type(error).__name__


def _tip(error: BaseException, source: str) -> str | None:
    text = str(error)
    if "trust_remote_code" in text:
        return "it needs its own code: pass --trust-remote-code if you trust it"
    if not Path(source).expanduser().is_dir():
        offline = os.environ.get("HF_HUB_OFFLINE", "") not in {"", "0"}
        return (
            "HF_HUB_OFFLINE is set: name a local folder, or unset it"
            if offline
            else "check the id, or name a local folder"
        )
    return None
