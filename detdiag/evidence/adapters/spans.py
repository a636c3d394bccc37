"""OpenTelemetry spans from OTLP JSON, a console or file exporter, or Jaeger, as flat records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.shape import arr, dig, epoch_s, first, label, number, obj


@dataclass(frozen=True, slots=True)
class Span:
    """``attributes`` has dotted names and plain values. ``events`` are (name, attributes, body),
    from the span and from log records that point at it."""

    line: int
    name: str
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, Mapping[str, Any], Any], ...] = ()
    span_id: str | None = None
    start_s: float | None = None
    end_s: float | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log record of an event that names the span it belongs to."""

    line: int
    span_id: str
    event: str
    attributes: Mapping[str, Any]
    body: Any
    time_s: float | None


_SCOPES: Final = ("scopeSpans", "instrumentationLibrarySpans", "scope_spans")
_LOG_SCOPES: Final = ("scopeLogs", "scope_logs")


def read_spans(document: Document) -> list[Span]:
    """Every span of the file; log records are attached to their span by its id."""
    spans: list[Span] = []
    logs: dict[str, list[tuple[str, Mapping[str, Any], Any]]] = defaultdict(list)
    for line, row in document.rows:
        spans += [_span(line, raw) for raw in _raw_spans(row)]
    for record in read_log_records(document):
        logs[record.span_id].append((record.event, record.attributes, record.body))
    return [_with_logs(span, logs.get(span.span_id or "", [])) for span in _numbered(spans)]


def read_log_records(document: Document) -> Iterator[LogRecord]:
    """Every log record of the file that is an event of a span."""
    for line, row in document.rows:
        for raw in _raw_logs(row):
            event, ident = _log_event(raw), label(first(raw, "spanId", "span_id"))
            when = first(raw, "timeUnixNano", "observedTimeUnixNano", "timestamp")
            if event is not None and ident is not None:
                yield LogRecord(line, ident, *event, epoch_s(when))


def sample_spans(document: Document, count: int = 64) -> list[Span]:
    """The first spans of the file, without log records: enough to recognise it."""
    raw = (one for _, row in document.rows for one in _raw_spans(row))
    return [_span(0, one) for one in islice(raw, count)]


def _numbered(spans: list[Span]) -> Iterator[Span]:
    """In one big JSON value all spans share a line: number them by their place instead."""
    one_value = len({span.line for span in spans}) == 1 and len(spans) > 1
    for place, span in enumerate(spans, start=1):
        yield Span(**{**_fields(span), "line": place}) if one_value else span


def _with_logs(span: Span, events: Sequence[tuple[str, Mapping[str, Any], Any]]) -> Span:
    return Span(**{**_fields(span), "events": (*span.events, *events)}) if events else span


def _fields(span: Span) -> dict[str, Any]:
    return {name: getattr(span, name) for name in Span.__slots__}


def _raw_spans(row: Any) -> Iterator[Mapping[str, Any]]:
    for resource in arr(first(row, "resourceSpans", "resource_spans")):
        for key in _SCOPES:
            for scope in arr(obj(resource).get(key)):
                yield from (s for s in arr(obj(scope).get("spans")) if isinstance(s, Mapping))
    if isinstance(dig(row, "spans"), list):
        yield from (s for s in row["spans"] if isinstance(s, Mapping))
    elif isinstance(row, Mapping) and _is_flat_span(row):
        yield row


def _is_flat_span(row: Mapping[str, Any]) -> bool:
    if isinstance(row.get("attributes"), (Mapping, list)) and any(
        key in row for key in ("span_id", "spanId", "context", "name", "start_time", "traceId")
    ):
        return "body" not in row and "severityNumber" not in row
    return any(key.startswith(("attributes.llm", "attributes.gen_ai")) for key in row)


def _raw_logs(row: Any) -> Iterator[Mapping[str, Any]]:
    for resource in arr(first(row, "resourceLogs", "resource_logs")):
        for key in _LOG_SCOPES:
            for scope in arr(obj(resource).get(key)):
                records = first(scope, "logRecords", "log_records")
                yield from (r for r in arr(records) if isinstance(r, Mapping))
    if isinstance(row, Mapping) and "body" in row and ("span_id" in row or "spanId" in row):
        yield row


def _log_event(record: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], Any] | None:
    attributes = flat(record.get("attributes"))
    found = label(first(record, "eventName", "event_name", "name")) or label(
        attributes.get("event.name")
    )
    return None if found is None else (found, attributes, plain(record.get("body")))


def _span(line: int, raw: Mapping[str, Any]) -> Span:
    start_s = epoch_s(
        first(raw, "startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
    )
    end_s = epoch_s(first(raw, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime"))
    took_us = number(raw.get("duration"))
    if end_s is None and start_s is not None and took_us is not None and "tags" in raw:
        end_s = start_s + took_us / 1e6
    context = obj(raw.get("context"))
    code = first(raw.get("status"), "code", "status_code")
    return Span(
        line=line,
        name=label(first(raw, "name", "operationName")) or "",
        attributes=flat(raw.get("attributes")) or flat(raw.get("tags")) or _columns(raw),
        events=tuple(_events(raw)),
        span_id=label(first(raw, "spanId", "span_id", "spanID") or context.get("span_id")),
        start_s=start_s,
        end_s=end_s,
        failed=str(code).upper() in ("2", "ERROR", "STATUS_CODE_ERROR", "STATUSCODE.ERROR"),
    )


def _columns(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A table export: one column ``attributes.llm.model_name`` an attribute."""
    return {
        key.removeprefix("attributes."): value
        for key, value in raw.items()
        if key.startswith("attributes.")
    }


def _events(raw: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    for event in arr(first(raw, "events", "logs")):
        attributes = flat(first(event, "attributes", "fields"))
        found = label(dig(event, "name")) or label(attributes.get("event"))
        if found is not None:
            yield found, attributes, None


def flat(value: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Attributes as dotted names, from an object (nested or not) or from key/value pairs."""
    found: dict[str, Any] = {}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, Mapping) and depth < 6 and not _is_any_value(inner):
                found.update(flat(inner, f"{prefix}{key}.", depth + 1))
            else:
                found[f"{prefix}{key}"] = plain(inner)
    for pair in arr(value):
        key = label(dig(pair, "key"))
        if key is not None:
            found[key] = plain(dig(pair, "value"))
    return found


_ANY_VALUES: Final = (
    "stringValue",
    "intValue",
    "doubleValue",
    "boolValue",
    "arrayValue",
    "kvlistValue",
    "bytesValue",
)


def _is_any_value(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in _ANY_VALUES


def plain(value: Any, depth: int = 0) -> Any:
    """The JSON value inside an OTLP ``AnyValue`` (opentelemetry-proto common.proto)."""
    if not _is_any_value(value) or depth > 32:
        return value
    kind, inner = next(iter(value.items()))
    if kind == "arrayValue":
        return [plain(v, depth + 1) for v in arr(dig(inner, "values"))]
    if kind == "kvlistValue":
        pairs = arr(dig(inner, "values"))
        return {str(dig(p, "key")): plain(dig(p, "value"), depth + 1) for p in pairs}
    if kind == "intValue" and isinstance(inner, str):
        try:
            return int(inner)
        except ValueError:
            return inner
    return inner
