"""What a loaded model does with fixed probes: token ids, and the bits of its logits.

Files and versions only suggest that something may change; this tests it. Torch is used through
the target that is passed in and is not imported here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from detdiag.evidence.finding import Evidence, Finding
from detdiag.fingerprint.diff import FieldDiff
from detdiag.fingerprint.tokenizer import PROBES
from detdiag.fingerprint.weightdiff import section
from detdiag.inputs.characters import visible

_LENGTH: Final = 24
_STEPS: Final = (7919, 104729)
"""Strides through the vocabulary: two id lists that no tokenizer is needed for."""


def loaded_behaviour(target: Any) -> dict[str, Any]:
    """``{"loaded": {...}}``: dtype, device, attention, ids of the probes, logit digests.

    Each probe list runs alone, twice; ``repeatable`` says whether the bits agreed.
    """
    config = target.model.config
    out: dict[str, Any] = {
        "dtype": target.dtype,
        "device": str(target.device).split(":")[0],
        "attention": getattr(config, "_attn_implementation", None),
    }
    ids = _token_ids(target.tokenizer)
    if ids is not None:
        out["token_ids"] = ids
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    if vocabulary:
        rows = [[(step * (i + 1)) % vocabulary for i in range(_LENGTH)] for step in _STEPS]
        first, second = ([_digest(target, row) for row in rows] for _ in range(2))
        out["logits"] = {"digests": first, "repeatable": first == second}
    return {"loaded": out}


def _token_ids(tokenizer: Any) -> list[list[int]] | None:
    try:
        return [[int(i) for i in tokenizer(text)["input_ids"]] for text in PROBES if text]
    except Exception:  # noqa: BLE001  (a custom tokenizer may refuse any of these strings)
        return None


def _digest(target: Any, row: Sequence[int]) -> str:
    """Digest of dtype, shape and raw bytes of one forward's logits."""
    logits = target.forward([list(row)])[0].detach().cpu().contiguous()
    raw = logits.reshape(-1).view(_bytes_type(logits)).numpy().tobytes()
    head = f"{logits.dtype} {tuple(logits.shape)} ".encode()
    return hashlib.sha256(head + raw).hexdigest()[:32]


def _bytes_type(tensor: Any) -> Any:
    import sys

    return sys.modules["torch"].uint8


def same_setting(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether dtype, device and attention agree, so that logits are comparable at all."""
    return all(a.get(key) == b.get(key) for key in ("dtype", "device", "attention"))


def logits_equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool | None:
    """Whether the probes' logits agree to the bit; None where that could not be tested."""
    left, right = section(a, "loaded"), section(b, "loaded")
    logits = section(left, "logits"), section(right, "logits")
    if not all(logits) or not all(side.get("repeatable") for side in logits):
        return None
    return bool(logits[0].get("digests") == logits[1].get("digests"))


def ids_equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool | None:
    """Whether the loaded tokenizers give equal ids; None where one side did not record them."""
    ids = [section(side, "loaded").get("token_ids") for side in (a, b)]
    return None if None in ids else bool(ids[0] == ids[1])


def behaviour_findings(
    baseline: Mapping[str, Any], facts: Mapping[str, Any], rows: Sequence[FieldDiff]
) -> Iterator[Finding]:
    """What the probes show; ``rows`` are the facts that differ, named as candidates."""
    if ids_equal(baseline, facts) is False:
        yield _ids_finding(baseline, facts)
    equal = logits_equal(baseline, facts)
    left, right = section(baseline, "loaded"), section(facts, "loaded")
    if equal is None or (not equal and not same_setting(left, right)):
        return
    count = len(section(right, "logits").get("digests", []))
    if equal:
        yield Finding(
            "version",
            "version.numerics-changed",
            "passed",
            f"logits of {count} fixed probes equal those of the baseline to the bit",
            evidence=(Evidence("probes whose logits differ", 0, count, "probes"),),
        )
        return
    yield _logits_finding(left, right, rows, count)


def _ids_finding(baseline: Mapping[str, Any], facts: Mapping[str, Any]) -> Finding:
    old, new = (section(side, "loaded")["token_ids"] for side in (baseline, facts))
    texts = [text for text in PROBES if text]
    differ = [i for i, (x, y) in enumerate(zip(old, new, strict=False)) if x != y]
    first = visible(texts[differ[0]], 40) if differ and differ[0] < len(texts) else "?"
    return Finding(
        "version",
        "version.tokenizer-changed",
        "failed",
        f"the loaded tokenizer gives other ids than the baseline for {len(differ)} of {len(new)} "
        f"probe strings, first {first!r}",
        severity="high",
        evidence=(Evidence("probe strings with other ids", len(differ), len(new), "strings"),),
        mechanism=True,
        proven=True,
        explains=("tokenizer_digest", "library_versions", "prompt_token_ids"),
    )


def _logits_finding(
    left: Mapping[str, Any], right: Mapping[str, Any], rows: Sequence[FieldDiff], count: int
) -> Finding:
    old, new = (section(side, "logits")["digests"] for side in (left, right))
    differ = sum(x != y for x, y in zip(old, new, strict=False))
    suspects = [row for row in rows if row.effect in ("bits", "unknown") and row.severity != "info"]
    named = "; ".join(row.describe() for row in suspects[:3]) or "no recorded fact differs"
    return Finding(
        "version",
        "version.numerics-changed",
        "failed",
        f"logits of {differ} of {count} fixed probes differ from the baseline's in bits, each "
        f"repeatable on its side; facts that differ: {named}",
        severity="high",
        evidence=(Evidence("probes whose logits differ", differ, count, "probes"),),
        mechanism=True,
        proven=True,
        explains=tuple(dict.fromkeys(name for row in suspects for name in row.explains)),
    )
