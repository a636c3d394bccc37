"""From one decoded record to one row of columns, through the adapter of the file's format."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from detdiag.evidence.adapters import bodies, pairs
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.factors import response_factors
from detdiag.evidence.adapters.interface import Adapter, Broken, Exchange
from detdiag.evidence.adapters.left_out import redacted
from detdiag.evidence.adapters.shape import first, label, loads, obj
from detdiag.evidence.adapters.streams import CUT
from detdiag.evidence.observation import Output
from detdiag.incidents.columns import ABSENT, Columns, Row
from detdiag.incidents.short import ShortPath
from detdiag.incidents.signature import Keyer


class Extractor:
    """Adds records to ``columns``.

    Plain pairs with an OpenAI-shaped reply, which is what large logs hold, take a short path;
    every other record goes through ``adapter``. Both give the same row (a test holds this).
    """

    def __init__(self, columns: Columns, adapter: Adapter, *, short: bool = True) -> None:
        self.columns = columns
        self.adapter = adapter
        self.keyer = Keyer()
        columns.inert = self.keyer.seen
        self.waiting: list[Row] = []
        self.short = ShortPath(self.keyer) if short and adapter is pairs else None

    def read(self, lines: Sequence[bytes], number: int, offset: int) -> None:
        """Lines of a JSON-lines file; ``number`` and ``offset`` are those of the first one."""
        numbers: Sequence[int] = range(number, number + len(lines))
        offsets = list(accumulate(map(len, lines), initial=offset))[:-1]
        left: Sequence[int] = range(len(lines))
        if self.short is not None:
            parts, left = self.short.read(lines, numbers, offsets)
            for part in parts:
                self.columns.extend(part)
        for index in left:
            self._line(lines[index], numbers[index], offsets[index])
        self.flush()

    def _line(self, line: bytes, number: int, offset: int) -> None:
        """Any line, through the adapter. Never raises for what the line holds."""
        if line.isspace():
            return
        try:
            self._add_one(number, offset, loads(line))
        except (ValueError, UnicodeError) as error:
            self.columns.add_broken(number, f"not valid JSON: {error}"[:200])

    def _add_one(self, line: int, offset: int, row: Any) -> None:
        try:
            for entry in row_entries(self.adapter, line, row):
                self.add_entry(entry, offset)
        except RecursionError:
            self.columns.add_broken(line, "nested too deep")

    def add_entry(self, entry: Exchange | Broken, offset: int = 0) -> None:
        """One exchange as an adapter gives it."""
        columns = self.columns
        if isinstance(entry, Broken):
            columns.add_broken(entry.line, entry.why)
            return
        outputs = entry_outputs(entry)
        key = 0 if entry.request is None else self.keyer.key(entry.request)
        reason = entry.left_out or _reason(entry.response, outputs)
        reason = reason or (None if key else "no prompt recorded")
        if reason is not None:
            columns.records += 1
            columns.leave_out(reason)
            return
        factors = {**response_factors(entry.response), **entry.factors}
        replica = " ".join(entry.replica[k] for k in sorted(entry.replica))
        cached = factors.get("cached_tokens")
        self.waiting.append(
            Row(
                request=key,
                answer=answer(outputs),
                reply_id=label(first(entry.response, "id", "responseId")),
                offset=offset,
                line=entry.line,
                start=entry.start_s,
                end=entry.end_s,
                took_s=None,
                created=first(entry.response, "created", "created_at", "createTime"),
                cached=cached if type(cached) is int and 0 <= cached < 2**62 else ABSENT,
                system_fingerprint=factors.get("system_fingerprint"),
                replica=replica or factors.get("replica"),
                provider=factors.get("provider"),
                model_reported=factors.get("model_reported"),
            )
        )

    def flush(self) -> None:
        """Hand the records that wait to the columns."""
        if self.waiting:
            self.columns.extend(list(zip(*self.waiting, strict=True)))
            self.waiting.clear()


def row_entries(adapter: Adapter, line: int, row: Any) -> list[Exchange | Broken]:
    """The exchanges of one record of a JSON-lines file."""
    return list(adapter.exchanges(Document(Path("log"), rows=((line, row),))))


def entry_outputs(entry: Exchange) -> list[Output]:
    return [entry.output] if entry.output is not None else bodies.outputs(entry.response)


def answer(outputs: list[Output]) -> Any:
    """What is compared: the text, else the token ids; a list of them for several choices."""
    each = [o.text if o.text is not None else o.token_ids for o in outputs]
    return each[0] if len(each) == 1 else each


def _reason(response: Any, outputs: list[Output]) -> str | None:
    """Why a reply is no evidence; None when it is."""
    if obj(response).get(CUT) is True:
        return "the stream broke off before its end"
    if not any(o.text is not None or o.token_ids is not None for o in outputs):
        return "no answer recorded"
    if any(redacted(o.text or "") for o in outputs):
        return "answer redacted or cut by the logger"
    return None
