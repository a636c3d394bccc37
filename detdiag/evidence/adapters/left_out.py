"""Records that carry no evidence, each with its reason: failed, cut, redacted, cached or twice."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from detdiag.evidence.adapters import bodies
from detdiag.evidence.adapters.interface import Exchange
from detdiag.evidence.adapters.shape import dig, first, label, obj
from detdiag.evidence.adapters.streams import CUT
from detdiag.evidence.observation import Output


def mark(exchanges: list[Exchange], answers: list[list[Output]]) -> list[Exchange]:
    """Give every exchange without evidence its reason."""
    repeated = _repeated_ids(exchanges, answers)
    cut, copies = _cut(exchanges), _written_twice(exchanges, answers)
    out = []
    for index, (exchange, found) in enumerate(zip(exchanges, answers, strict=True)):
        reason = exchange.left_out
        if reason is None and not any(_says_something(output) for output in found):
            error = isinstance(exchange.response, Mapping) and bodies.is_error(exchange.response)
            reason = "error instead of an answer" if error else "no answer recorded"
        elif reason is None and any(redacted(o.text or "") for o in found):
            reason = "answer redacted or cut by the logger"
        elif reason is None and index in cut:
            reason = "the stream broke off before its end"
        elif reason is None and index in copies:
            reason = "the same record a second time (id, time and answer)"
        elif reason is None and index in repeated:
            reason = (
                "same response id as an earlier reply (a response cache or the call logged twice)"
            )
        out.append(exchange if reason == exchange.left_out else replace(exchange, left_out=reason))
    return out


def _cut(exchanges: list[Exchange]) -> set[int]:
    """Streams without an end; none where no stream of the file has one, because then it is the
    log that leaves the last chunk out."""
    streams = [obj(e.response).get(CUT) is True for e in exchanges]
    ended = any(
        not cut and bodies.family_of(e.response) for cut, e in zip(streams, exchanges, strict=True)
    )
    return {index for index, cut in enumerate(streams) if cut} if ended else set()


_REDACTIONS: Final = frozenset(
    {"redacted-by-litellm", "[redacted]", "redacted", "<redacted>", "__redacted__"}
)


_CUT_MARK: Final = re.compile(r"[\[(<{][^\[(<{\])>}]{0,30}truncated[^\])>}]{0,30}[\])>}]\s*$", re.I)
"""What loggers write at the end of a text that they cut: ``... [truncated 120 chars]``."""


def redacted(answer: str) -> bool:
    """Redacted answers are all alike, and cut ones only as far as they go: neither is evidence."""
    if len(answer) < 40 and answer.strip().lower() in _REDACTIONS:
        return True
    return "(litellm_truncated" in answer or bool(_CUT_MARK.search(answer, len(answer) - 80))


def _says_something(output: Output) -> bool:
    return output.text is not None or output.token_ids is not None


def _repeated_ids(exchanges: list[Exchange], answers: list[list[Output]]) -> set[int]:
    """Later replies with an id, a creation time and a text seen before.

    Where one id stands for several texts the server's ids say nothing, and nothing is left out.
    """
    seen: dict[tuple[str, str | None], int] = {}
    texts: dict[tuple[str, str | None], set[str | None]] = defaultdict(set)
    later: set[int] = set()
    for index, (exchange, found) in enumerate(zip(exchanges, answers, strict=True)):
        ident = label(first(exchange.response, "id", "responseId"))
        if ident is None or exchange.left_out is not None or not found:
            continue
        key = (ident, label(dig(exchange.response, "created")))
        texts[key].add(found[0].text)
        if key in seen:
            later.add(index)
        seen.setdefault(key, index)
    return set() if any(len(found) > 1 for found in texts.values()) else later


def _written_twice(exchanges: list[Exchange], answers: list[list[Output]]) -> set[int]:
    """Later records with the log's own id, start and answer of an earlier one: a shipper that
    sends again, or two exports that were joined."""
    seen: set[tuple[str, float, str | None]] = set()
    later: set[int] = set()
    for index, (exchange, found) in enumerate(zip(exchanges, answers, strict=True)):
        if exchange.id is None or exchange.start_s is None or not found:
            continue
        key = (exchange.id, exchange.start_s, found[0].text)
        if key in seen:
            later.add(index)
        seen.add(key)
    return later


def counted(exchanges: list[Exchange]) -> list[str]:
    """One sentence a reason, with its count."""
    reasons = Counter(e.left_out for e in exchanges if e.left_out is not None)
    return [
        f"{count} of {len(exchanges)} records left out: {why}" for why, count in reasons.items()
    ]
