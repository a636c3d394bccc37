"""What this machine lets detdiag do, judged from metadata; no model and no torch import."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from typing import Any, Final

from detdiag import __version__
from detdiag.fingerprint.environment import (
    cpu_facts,
    gpu_facts,
    library_versions,
    platform_facts,
    thread_facts,
)
from detdiag.layers import LAYERS

_LOCAL: Final = ("torch", "transformers", "tokenizers", "safetensors")
_RECORDED: Final = ("pandas", "scipy")
_ENDPOINT: Final = ("httpx",)
_NO_ENDPOINT_PROBE: Final = ("moe",)
"""Layers that no endpoint exposes: expert choices are not in any response format."""

_OPTIONAL: Final[tuple[tuple[str, str, str], ...]] = (
    ("gguf", "GGUF models cannot be loaded (they can be fingerprinted)", "pip install gguf"),
    ("sentencepiece", "tokenizers that ship tokenizer.model only", "pip install sentencepiece"),
    ("accelerate", "models larger than one device", "pip install accelerate"),
    ("plotly", "figures in HTML reports", "pip install plotly"),
)

_ASK_TORCH: Final = """
import json, torch
out = {
    "version": torch.__version__,
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "threads": torch.get_num_threads(),
    "mkl": torch.backends.mkl.is_available(),
    "onednn": torch.backends.mkldnn.is_available(),
    "cuda": torch.cuda.is_available(),
}
if out["cuda"]:
    out["devices"] = torch.cuda.device_count()
    out["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    out["cudnn"] = torch.backends.cudnn.version()
print(json.dumps(out))
"""


def survey(*, ask_torch: bool = False) -> dict[str, Any]:
    """Machine, libraries, one row a layer (recorded, local, endpoint), and what is missing."""
    gpus = gpu_facts()
    out: dict[str, Any] = {
        "detdiag": __version__,
        "machine": _machine(gpus),
        "libraries": library_versions(),
    }
    if ask_torch:
        out["torch"] = torch_answers()
    out["layers"] = [_layer(layer) for layer in LAYERS]
    out["missing"] = _missing(gpus, out.get("torch"))
    return out


def _machine(gpus: list[dict[str, str]]) -> dict[str, Any]:
    cpu, threads = cpu_facts(), thread_facts()
    return {
        "python": sys.version.split()[0],
        "system": " ".join(v for v in platform_facts().values() if v),
        "cpu": cpu.get("model", ""),
        "isa": " ".join(cpu.get("isa", [])),
        "cpus": threads.get("affinity", threads["cpus"]),
        "gpu": ", ".join(f"{g['name']} (driver {g['driver']})" for g in gpus),
    }


def present(module: str) -> bool:
    """Whether a module could be imported; nothing is."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _layer(layer: str) -> dict[str, Any]:
    endpoint = _needs(_ENDPOINT)
    if layer in _NO_ENDPOINT_PROBE:
        endpoint = {"can_run": False, "reason": "no such probe"}
    elif not present("detdiag.targets.endpoint"):
        endpoint = {"can_run": False, "reason": "endpoint probes are not part of this version"}
    return {
        "layer": layer,
        "recorded": _needs(_RECORDED),
        "local": _needs(_LOCAL),
        "endpoint": endpoint,
    }


def _needs(modules: tuple[str, ...]) -> dict[str, Any]:
    absent = [module for module in modules if not present(module)]
    if not absent:
        return {"can_run": True, "reason": ""}
    return {"can_run": False, "reason": f"not installed: {', '.join(absent)}"}


def _missing(gpus: list[dict[str, str]], torch: dict[str, Any] | None) -> list[dict[str, str]]:
    out = [
        {"what": name, "why": why, "enable": how}
        for name, why, how in _OPTIONAL
        if not present(name)
    ]
    out += [
        {"what": module, "why": "a required dependency", "enable": f"pip install {module}"}
        for module in (*_LOCAL, *_RECORDED, *_ENDPOINT)
        if not present(module)
    ]
    if not gpus:
        out.append(
            {
                "what": "GPU",
                "why": "GPU toggles (TF32, cuDNN, CUDA attention backends) are not applicable",
                "enable": "run on a machine whose nvidia-smi lists a device",
            }
        )
    elif torch is not None and not torch.get("cuda"):
        out.append(
            {
                "what": "CUDA in torch",
                "why": "nvidia-smi lists a GPU but this torch cannot use it",
                "enable": "install a CUDA build of torch for the driver",
            }
        )
    if not any(shutil.which(name) for name in ("chromium", "google-chrome", "chromium-browser")):
        out.append(
            {
                "what": "a browser",
                "why": "HTML reports cannot be looked at here (writing them works)",
                "enable": "copy the file to a desktop; it needs no network",
            }
        )
    return out


def torch_answers(timeout_s: float = 120.0) -> dict[str, Any]:
    """What torch itself says, asked in a child process; ``{"error": ...}`` when it cannot."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode == 0:
            return dict(json.loads(done.stdout))
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        last = str(error)
    return {"error": last[:200]}
