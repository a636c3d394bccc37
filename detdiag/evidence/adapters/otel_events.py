"""OpenTelemetry GenAI events in a log file of their own: what a collector writes beside its spans.

Up to conventions 1.36 one event a message (``gen_ai.user.message``, ``gen_ai.choice``), from 1.37
one ``gen_ai.client.inference.operation.details`` with the attributes of the span
(open-telemetry/semantic-conventions, docs/gen-ai/gen-ai-events.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from detdiag.evidence.adapters import otel
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.spans import LogRecord, Span, read_log_records, sample_spans

name: Final = "OpenTelemetry GenAI events"
lacks: Final = otel.lacks


def matches(document: Document) -> bool:
    if sample_spans(document, 1):
        return False
    return any(_is_own(record) for record in islice(read_log_records(document), 64))


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    """One call for each span that the events name."""
    calls: dict[str, list[LogRecord]] = defaultdict(list)
    for number, record in enumerate(read_log_records(document)):
        if _is_own(record):
            calls[_call(record, number)].append(record)
    for records in calls.values():
        span = _span(records)
        if not otel.is_other(span.attributes):
            found = otel.read_span(span)
            recorded = any(key.startswith("gen_ai.request.") for key in span.attributes)
            yield replace(found, parameters_recorded=recorded)


def _call(record: LogRecord, number: int) -> str:
    """The span, which nothing but its id names; written outside of any span (an id of zeros) a
    record is a call of its own, since nothing says which belong together."""
    return record.span_id if _in_span(record) else f"record {number}"


def _in_span(record: LogRecord) -> bool:
    return bool(record.span_id.strip("0x"))


def _is_own(record: LogRecord) -> bool:
    return record.event.startswith("gen_ai.") or otel.is_genai(record.attributes)


def _span(records: list[LogRecord]) -> Span:
    attributes: dict[str, Any] = {}
    for record in records:
        attributes |= _facts(record.attributes)
    times = [r.time_s for r in records if r.time_s is not None]
    return Span(
        line=records[0].line,
        name="",
        attributes=attributes,
        events=tuple((r.event, r.attributes, r.body) for r in records),
        span_id=records[0].span_id if _in_span(records[0]) else None,
        start_s=min(times, default=None),
    )


def _facts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of the call; the content of one message stays on its event."""
    return {k: v for k, v in attributes.items() if k not in ("content", "role", "message")}
