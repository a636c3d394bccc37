"""Amazon Bedrock model invocation logging (CloudWatch or S3): one record a call, with the bodies.

Record shape: ``schemaType`` ``ModelInvocationLog``, ``input.inputBodyJson`` and
``output.outputBodyJson``; the chunks of a streamed reply are an array. Bodies above 100 KB are
kept elsewhere (``inputBodyS3Path``), and then the record has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import dig, epoch_s, first, label, maybe_json, obj
from detdiag.evidence.adapters.streams import is_chunk_list, merge
from detdiag.evidence.adapters.surfaces import surface_of

name: Final = "Bedrock model invocation log"
lacks: Final = ("log-probabilities", "token ids", "batch", "expert routing", "end time")


def matches(document: Document) -> bool:
    return any(_is_record(_record(row)) for row in document.sample())


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for line, row in document.rows:
        record = _record(row)
        if _is_record(record):
            yield _exchange(line, record)
        else:
            yield Broken(line, "not a model invocation record")


def _record(row: Any) -> Mapping[str, Any]:
    """The record itself, or inside the envelope of a CloudWatch export."""
    wrapped = maybe_json(first(row, "@message", "message"))
    return obj(wrapped) if _is_record(obj(wrapped)) else obj(row)


def _is_record(row: Mapping[str, Any]) -> bool:
    return row.get("schemaType") == "ModelInvocationLog"


def _exchange(line: int, row: Mapping[str, Any]) -> Exchange:
    sent = maybe_json(dig(row, "input", "inputBodyJson"))
    received = maybe_json(dig(row, "output", "outputBodyJson"))
    if is_chunk_list(received):
        received = merge(received)
    model = label(row.get("modelId"))
    request = {**({} if model is None else {"modelId": model}), **sent} if obj(sent) else None
    region = label(first(row, "inferenceRegion", "region"))
    return Exchange(
        line=line,
        id=label(row.get("requestId")),
        request=request,
        response=received,
        surface=surface_of(None, request, received),
        replica={} if region is None else {"region": region},
        start_s=epoch_s(row.get("timestamp")),
        left_out=f"error {row['errorCode']}" if row.get("errorCode") else None,
    )
