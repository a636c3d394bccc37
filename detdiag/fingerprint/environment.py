"""Facts about this machine that can explain bits. Names of users, hosts and devices stay out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

LIBRARIES: Final = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "accelerate",
    "numpy",
    "sentencepiece",
    "tiktoken",
    "jinja2",
    "triton",
    "vllm",
    "sglang",
    "flash-attn",
    "xformers",
    "flashinfer-python",
    "bitsandbytes",
    "autoawq",
    "auto-gptq",
    "gptqmodel",
    "compressed-tensors",
    "optimum",
    "peft",
    "kernels",
    "llama-cpp-python",
    "onnxruntime",
    "nvidia-cublas-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-nccl-cu12",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu13",
    "intel-extension-for-pytorch",
    "mkl",
    "openai",
    "anthropic",
    "litellm",
)

ENVIRONMENT: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_DYNAMIC",
    "OMP_PROC_BIND",
    "KMP_AFFINITY",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUDNN_DETERMINISTIC",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_MAX_NCHANNELS",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_COMPILE_DISABLE",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
    "VLLM_BATCH_INVARIANT",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_USE_V1",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_FLASH_ATTN_VERSION",
    "SGLANG_RETURN_ORIGINAL_LOGPROB",
    "TOKENIZERS_PARALLELISM",
    "HF_HUB_OFFLINE",
    "LLAMA_ARG_N_PARALLEL",
    "OLLAMA_NUM_PARALLEL",
    "GLIBC_TUNABLES",
    "LC_ALL",
    "TZ",
)
"""Variables that can change bits, tokens or text. Nothing outside this list is ever read."""

_ISA: Final = frozenset(
    "sse4_2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512vnni avx512_vnni avx512_bf16 "
    "avx512_fp16 amx_tile amx_bf16 amx_int8 amx_fp16 avx_vnni asimd asimddp asimdhp bf16 i8mm "
    "sve sve2 sme".split()
)


def environment_section() -> dict[str, Any]:
    """Python, libraries, CPU, threads, GPU and driver, variables, container hints."""
    gpus = gpu_facts()
    out: dict[str, Any] = {
        "python": platform.python_version(),
        "library_versions": library_versions(),
        "platform": platform_facts(),
        "cpu": cpu_facts(),
        "threads": thread_facts(),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "container": container_hints(),
    }
    out |= torch_build()
    if gpus:
        out["gpu"] = ", ".join(sorted({gpu["name"] for gpu in gpus}))
        out["gpu_count"] = len(gpus)
        out["driver"] = gpus[0]["driver"]
        out["gpu_facts"] = gpus
    return out


def library_versions() -> dict[str, str]:
    """Versions from installed metadata; nothing is imported."""
    out: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def torch_build() -> dict[str, Any]:
    """Build facts of torch from its ``version.py``, read as text."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return {}
    path = Path(found.origin).parent / "version.py"
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return {}
    out: dict[str, Any] = {}
    for key in ("debug", "git_version", "cuda", "hip", "xpu"):
        match = re.search(rf"^{key}(?:\s*:[^=]*)?\s*=\s*'?([^'\s]+)'?", text, re.MULTILINE)
        if match and match[1] != "None":
            out[key] = match[1]
    return {"torch_build": out}


def torch_runtime() -> dict[str, Any]:
    """Build configuration, BLAS, oneDNN, cuDNN, NCCL and thread counts, from a torch that the
    caller has imported already; {} where it has not (this never imports it)."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    out: dict[str, Any] = {
        "config": _config_lines(str(torch.__config__.show())),
        "intraop_threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if torch.cuda.is_available():
        out["cudnn"] = torch.backends.cudnn.version()
        out["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        out["sdpa"] = {
            "flash": torch.backends.cuda.flash_sdp_enabled(),
            "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
            "math": torch.backends.cuda.math_sdp_enabled(),
            "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        }
        out["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {"torch_runtime": out}


def _config_lines(text: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip(" -")
        if line.startswith(("Intel(R) MKL-DNN", "Intel(R) oneAPI", "OpenMP", "LAPACK", "MAGMA")):
            key = line.split(" v")[0].split(" 20")[0][:40]
            out[key] = line[:160]
        match = re.search(r"BLAS_INFO=(\w+)", line)
        if match:
            out["BLAS"] = match[1]
    return out


def platform_facts() -> dict[str, str]:
    libc = platform.libc_ver()
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "kernel": platform.release().split("-")[0],
        "libc": " ".join(part for part in libc if part),
    }


def cpu_facts(cpuinfo: str | None = None) -> dict[str, Any]:
    """Model name, family and the instruction sets that numeric kernels dispatch on."""
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        except OSError:
            cpuinfo = ""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    out = {
        "model": fields.get("model name") or platform.processor(),
        "vendor": fields.get("vendor_id") or fields.get("CPU implementer", ""),
        "family": "/".join(fields.get(k, "") for k in ("cpu family", "model", "stepping")),
        "isa": sorted(_ISA.intersection(flags)),
    }
    return {key: value for key, value in out.items() if value and value != "//"}


def thread_facts() -> dict[str, int]:
    out = {"cpus": os.cpu_count() or 0}
    if hasattr(os, "sched_getaffinity"):
        out["affinity"] = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    if quota is not None:
        out["cgroup_cpus_x100"] = quota
    return out


def _cpu_quota() -> int | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return None if quota == "max" else round(100 * int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def gpu_facts() -> list[dict[str, str]]:
    """Name, driver, compute capability and memory per GPU (no serials); [] without nvidia-smi."""
    fields = "name,driver_version,compute_cap,memory.total,mig.mode.current"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    names = ("name", "driver", "compute_capability", "memory", "mig")
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [dict(zip(names, row, strict=False)) for row in rows if row]


def container_hints() -> dict[str, Any]:
    """Whether a container runtime shows; the cgroup path itself may hold names and stays out."""
    hints = {
        "dockerenv": Path("/.dockerenv").exists(),
        "podman": Path("/run/.containerenv").exists(),
        "kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
    }
    return {name: True for name, present in hints.items() if present}
