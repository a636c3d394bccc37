"""One form of a prompt on every client: bytes, JSON order, tools and the clock.

A rule for both sides, not a repair of meaning: text is changed only as :class:`PromptPolicy` says.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from detdiag.errors import DetdiagError
from detdiag.inputs.canonical import PROMPT_FIELDS, is_inert, normal_key

_NEWLINE: Final = re.compile("\r\n|\r")
_TOOLS: Final = frozenset({"tools", "functions"})


@dataclass(frozen=True, slots=True)
class PromptPolicy:
    """``newlines`` "lf" writes CR LF and CR as LF; ``strip_bom`` takes a leading byte-order mark
    off each text; ``sort_tools`` orders tools by name and their JSON keys; ``drop_inert`` leaves
    out fields that cannot change the output (``user``, ids, time stamps ...)."""

    form: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = "NFC"
    newlines: Literal["lf", "keep"] = "lf"
    strip_bom: bool = True
    sort_tools: bool = True
    drop_inert: bool = True


DEFAULT: Final = PromptPolicy()


def canonical_text(text: str, policy: PromptPolicy = DEFAULT) -> str:
    """``text`` under the policy."""
    if policy.strip_bom:
        text = text.removeprefix("\ufeff")
    if policy.newlines == "lf":
        text = _NEWLINE.sub("\n", text)
    return text if policy.form is None else unicodedata.normalize(policy.form, text)


def canonical_body(request: Mapping[str, Any], policy: PromptPolicy = DEFAULT) -> dict[str, Any]:
    """A request body in one form: prompt texts under the policy, keys sorted outside of lists.

    Messages keep their order, as do all lists but those of tools. Parameters keep their values.
    """
    out: dict[str, Any] = {}
    for key in sorted(request):
        if policy.drop_inert and is_inert(key):
            continue
        value = request[key]
        if normal_key(key) in _TOOLS and policy.sort_tools:
            out[key] = _tools(value, policy)
        elif normal_key(key) in PROMPT_FIELDS:
            out[key] = _texts(value, policy)
        else:
            out[key] = _sorted(value)
    return out


def canonical_bytes(request: Mapping[str, Any], policy: PromptPolicy = DEFAULT) -> bytes:
    """:func:`canonical_body` as the bytes to send: UTF-8 JSON without spaces or escapes."""
    return json.dumps(
        canonical_body(request, policy), ensure_ascii=False, separators=(",", ":")
    ).encode()


def _texts(value: Any, policy: PromptPolicy) -> Any:
    if isinstance(value, str):
        return canonical_text(value, policy)
    if isinstance(value, Mapping):
        return {k: _texts(value[k], policy) for k in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_texts(v, policy) for v in value]
    return value


def _tools(value: Any, policy: PromptPolicy) -> Any:
    made = _texts(value, policy)
    if not isinstance(made, list):
        return made
    return sorted(made, key=lambda tool: (_tool_name(tool), json.dumps(tool, sort_keys=True)))


def _tool_name(tool: Any) -> str:
    if not isinstance(tool, Mapping):
        return ""
    inner = tool.get("function")
    return str(tool.get("name") or (inner.get("name") if isinstance(inner, Mapping) else "") or "")


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _sorted(value[k]) for k in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_sorted(v) for v in value]
    return value


@contextlib.contextmanager
def frozen_clock(moment: str | datetime.datetime) -> Iterator[datetime.datetime]:
    """Chat templates that ask for the time (``strftime_now``) get ``moment`` while this is open.

    ``moment`` is a datetime or ISO 8601 text. It acts on transformers in this process; a server's
    template needs the date passed as a variable. transformers compiles ``strftime_now`` over
    ``datetime`` of ``transformers.utils.chat_template_utils``, which is what is replaced here.
    """
    from transformers.utils import chat_template_utils

    try:
        fixed = datetime.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError as error:
        raise DetdiagError(f"{moment!r} is no ISO 8601 time") from error

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Frozen:
            at = fixed if tz is None else fixed.astimezone(tz)
            return cls.fromisoformat(at.isoformat())

    before = chat_template_utils.datetime
    chat_template_utils.datetime = Frozen
    try:
        yield fixed
    finally:
        chat_template_utils.datetime = before
