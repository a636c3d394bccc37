"""The tokenizer as files and as behaviour: a fixed set of probe strings turned into ids."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError

FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
)

PROBES: Final[tuple[str, ...]] = (
    "Hello, world!",
    "two tall ships set sail",
    "  leading and trailing  ",
    "line one\nline two\r\n\n\ttabbed",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m",
    "cafe\u0301 A\u030angstro\u0308m",
    "1234567890 3.14159 1,000,000 0x1F",
    "def f(x):\n    return x ** 2  # comment",
    '{"key": [1, 2.0, null], "b": "c"}',
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0438\u0440 \u0645\u0631\u062d\u0628\u0627",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
    "zero\u200bwidth nbsp\u00a0here \ufeffbom",
    "ALL CAPS mixedCase snake_case kebab-case",
    "don't can't it's \u201cquoted\u201d \u2014 dash\u2026",
    "https://example.org/a?b=c&d=%20e",
    "<s></s><|endoftext|><|im_start|>user<|im_end|>[INST][/INST]",
    "\ufb01ligature \u00bd \u2460 \uff21\uff22\uff23 \u212b",
    "a" * 64,
    "",
)
"""Strings that the usual ways to change a tokenizer tell apart (normaliser, digits, spaces,
special tokens, byte fallback). Fixed for ever: their ids are compared between machines."""


def tokenizer_section(folder: Path) -> dict[str, Any]:
    """Files with SHA-256, parts of ``tokenizer.json``, probe ids; {} where there is none."""
    files = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in FILES
        if (folder / name).is_file()
    }
    if not files:
        return {}
    out: dict[str, Any] = {"files": files}
    path = folder / "tokenizer.json"
    if path.is_file():
        out["parts"] = _parts(_read_object(path))
        out["behaviour"] = _behaviour(path)
    config = folder / "tokenizer_config.json"
    if config.is_file():
        out["config"] = _config_facts(_read_object(config))
    out["digest"] = _digest({"parts": out.get("parts"), "files": _deciding(files)})
    return out


def _deciding(files: dict[str, str]) -> dict[str, str]:
    """Files whose bytes count themselves: ``tokenizer.json`` counts by its parts, so that another
    layout of the same JSON is equal; the configuration is compared field by field."""
    by_parts = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    return {name: digest for name, digest in files.items() if name not in by_parts}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DetdiagError(f"not valid JSON: {error}", path=path) from error
    if not isinstance(value, dict):
        raise DetdiagError("expected a JSON object", path=path)
    return value


def _parts(spec: dict[str, Any]) -> dict[str, Any]:
    """Small parts verbatim, the vocabulary and the merges as digests."""
    model = spec.get("model") or {}
    out: dict[str, Any] = {
        key: spec.get(key)
        for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation")
    }
    out["padding"] = spec.get("padding")
    out["added_tokens"] = spec.get("added_tokens") or []
    vocab, merges = model.get("vocab") or {}, model.get("merges") or []
    out["model"] = {k: v for k, v in model.items() if k not in ("vocab", "merges")}
    out["vocab_size"] = len(vocab)
    out["vocab"] = _digest(vocab)
    # Two spellings of one merge list: "a b" and ["a", "b"].
    out["merges"] = _digest([m.split(" ", 1) if isinstance(m, str) else m for m in merges])
    return out


def _behaviour(path: Path) -> dict[str, Any]:
    """Ids of every probe with and without special tokens, by the ``tokenizers`` library alone."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        rows = [
            [tokenizer.encode(text, add_special_tokens=special).ids for special in (True, False)]
            for text in PROBES
        ]
    except Exception as error:  # noqa: BLE001  (the library raises bare Exception)
        return {"unavailable": f"{type(error).__name__}: {str(error)[:200]}"}
    return {"ids": [row[0] for row in rows], "ids_plain": [row[1] for row in rows]}


_CONFIG_KEYS: Final = (
    "tokenizer_class",
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "additional_special_tokens",
    "extra_special_tokens",
    "clean_up_tokenization_spaces",
    "legacy",
    "model_max_length",
    "padding_side",
    "truncation_side",
    "split_special_tokens",
    "auto_map",
    "fix_mistral_regex",
)


def _config_facts(config: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {key: _token(config[key]) for key in _CONFIG_KEYS if key in config}
    if "added_tokens_decoder" in config:
        out["added_tokens_decoder"] = _digest(config["added_tokens_decoder"])
    return out


def _token(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) and "content" in value else value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
