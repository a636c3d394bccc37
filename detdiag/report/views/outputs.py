"""What the user saw: two outputs with the common start and the first difference apart."""

from __future__ import annotations

from typing import Any, Final

from detdiag.report import model, tables
from detdiag.report.messages import Say
from detdiag.report.numbers import number
from detdiag.report.safe import finite, one_line

MAX_OUTPUT_CHARS: Final = 4000
MAX_TOKEN_IDS: Final = 64


def output_views(report: model.Report, say: Say) -> list[dict[str, Any]]:
    """Each pair of outputs with the common start, the first difference and the rest apart."""
    out: list[dict[str, Any]] = []
    for pair in model.rows(model.data(report).get("outputs"))[:6]:
        a, b = model.mapping(pair.get("a")), model.mapping(pair.get("b"))
        texts = (str(a.get("text") or ""), str(b.get("text") or ""))
        same = common_start(*texts)
        first = pair.get("first_diff_token")
        title = one_line(pair.get("query"), 80)
        if first is not None:
            title += f": {say('outputs.first_diff', token=number(first))}"
        out.append(
            {
                "title": title,
                "sides": [
                    {
                        "condition": tables.condition_text(side.get("condition")),
                        "parts": split_at(text, same),
                        "token_ids": _ids(side.get("token_ids"), first),
                        "tag": tag,
                    }
                    for side, text, tag in ((a, texts[0], "del"), (b, texts[1], "ins"))
                ],
            }
        )
    return out


def common_start(a: str, b: str) -> int:
    """Length of the common start of two texts, in characters, cut back to a word start."""
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    if same == len(a) == len(b):
        return same
    while same and a[same - 1].isalnum() and a[same - 1].isascii():
        same -= 1
    return same


def split_at(text: str, same: int) -> tuple[str, str, str]:
    """``(common start, the first differing word, the rest)``; a long start keeps its end."""
    head, tail = text[:same], text[same:]
    end = 0
    while end < len(tail) and not (end and (tail[end].isspace() or end >= 40)):
        end += 1
    if len(head) > 600:
        head = f"[… {len(head) - 400}] {head[-400:]}"
    rest = tail[end:]
    if len(rest) > MAX_OUTPUT_CHARS:
        rest = f"{rest[:MAX_OUTPUT_CHARS]} [… {len(rest) - MAX_OUTPUT_CHARS}]"
    return head, tail[:end], rest


def _ids(value: Any, first: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return ""
    place = int(finite(first) or 0)
    start = max(0, place - MAX_TOKEN_IDS // 2) if len(value) > MAX_TOKEN_IDS else 0
    shown = value[start : start + MAX_TOKEN_IDS]
    ids = [
        f"[{number(v)}]" if first is not None and start + i == place else number(v)
        for i, v in enumerate(shown)
    ]
    return (
        ("… " if start else "") + " ".join(ids) + (" …" if start + len(shown) < len(value) else "")
    )
