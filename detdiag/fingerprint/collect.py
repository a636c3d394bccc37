"""The fingerprint of one model folder and this machine, as one JSON object."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.fingerprint.environment import environment_section, torch_runtime
from detdiag.fingerprint.template import section_of, template_section
from detdiag.fingerprint.tokenizer import tokenizer_section
from detdiag.fingerprint.weights import hash_weights, weight_files

SCHEMA: Final = "detdiag.fingerprint/1"

_CONFIGS: Final = ("config.json", "generation_config.json", "quantize_config.json")
_INERT_CONFIG: Final = frozenset(("_name_or_path", "transformers_version", "_commit_hash"))


def fingerprint(model: Path | None = None, *, threads: int | None = None) -> dict[str, Any]:
    """Everything known about ``model`` (a folder or one weight file) and this machine.

    Top-level names are those of the version factors (``weights_digest``, ``gpu`` ...). Reads
    files only. Raises :class:`DetdiagError` for a folder without a model or a broken file.
    """
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if model is not None:
        out |= model_section(model, threads=threads)
    return out | environment_section() | torch_runtime()


def model_section(model: Path, *, threads: int | None = None) -> dict[str, Any]:
    """The part that depends on the model's files alone, with the digests at the top level."""
    _check(model)
    folder = model if model.is_dir() else model.parent
    names = _CONFIGS if model.is_dir() else ()
    configs = {n: read_config(folder / n) for n in names if (folder / n).is_file()}
    weights = hash_weights(model, threads)
    metadata = weights.pop("metadata", {})
    out: dict[str, Any] = {}
    tokenizer, template = _gguf_text(metadata)
    if model.is_dir():
        tokenizer = tokenizer_section(folder) or tokenizer
        template = template_section(folder, special_tokens(folder)) or template
    if weights:
        out["weights_digest"] = weights["digest"]
    for key, section in (("tokenizer_digest", tokenizer), ("template_digest", template)):
        if section:
            out[key] = section.pop("digest")
    if "generation_config.json" in configs:
        out["generation_config_digest"] = _digest(configs["generation_config.json"])
    config = configs.get("config.json", {})
    quantisation = config.get("quantization_config") or configs.get("quantize_config.json")
    if quantisation:
        out["quantisation"] = quantisation
    code = {f.name: _sha256(f) for f in sorted(folder.glob("*.py"))} if model.is_dir() else {}
    sections = {
        "weights": weights,
        "tokenizer": tokenizer,
        "chat_template": template,
        "config": config,
        "generation_config": configs.get("generation_config.json", {}),
        "special_tokens": special_tokens(folder) if model.is_dir() else {},
        "model_code": code,
        "gguf": {k: v for k, v in metadata.items() if not k.startswith("tokenizer.")},
    }
    return out | {name: section for name, section in sections.items() if section}


def _gguf_text(metadata: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tokenizer and template sections of a GGUF file, which carries both in its metadata."""
    facts = {k: v for k, v in metadata.items() if k.startswith("tokenizer.")}
    text = facts.pop("tokenizer.chat_template", None)
    tokenizer = {"config": facts, "digest": _digest(facts)} if facts else {}
    if not isinstance(text, str):
        return tokenizer, {}
    return tokenizer, section_of({"default": text}, {})


def _check(model: Path) -> None:
    if not model.exists():
        raise DetdiagError("no such file or directory", path=model)
    if model.is_dir() and not weight_files(model) and not (model / "config.json").is_file():
        raise DetdiagError(
            "no model in this directory",
            path=model,
            tip="expected config.json and *.safetensors, *.bin or *.gguf",
        )


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object without the fields that only say where it came from."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DetdiagError(f"not valid JSON: {error}", path=path) from error
    if not isinstance(value, dict):
        raise DetdiagError("expected a JSON object", path=path)
    return {key: item for key, item in value.items() if key not in _INERT_CONFIG}


def special_tokens(folder: Path) -> dict[str, Any]:
    """``bos_token`` and its kin by name, from the map and the tokenizer configuration."""
    out: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        for key, value in read_config(path).items():
            content = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(content, str):
                out[key] = content
    return out


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
