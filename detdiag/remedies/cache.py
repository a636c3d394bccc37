"""A response cache under the canonical signature: the same question gets the stored answer.

A cache repeats answers; it does not make the model repeatable. A hit is therefore marked, and a
diagnosis must not count it as evidence.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.inputs.canonical import canonical_request

KEY_SCHEMA: Final = "detdiag.request-key/1"
HIT_FIELD: Final = "cache_hit"
"""Set in an answer (a JSON object) that came from the store."""


def request_key(
    request: Mapping[str, Any],
    *,
    model_version: str | None = None,
    provider: str | None = None,
    namespace: str = "",
) -> str:
    """``sha256:...`` under which the answer to ``request`` may be reused.

    The key is the canonical signature that ``detdiag incidents`` groups by (every field of the
    body that can change the output) with what the body does not say beside it:

    * ``model``, and ``model_version`` (snapshot, weights digest or ``system_fingerprint``);
    * sampling parameters (temperature, top_p, top_k, penalties, max_tokens, stop, n ...);
    * system prompt, messages or prompt, tools and tool choice, response format; their text to
      the byte, lists in their order;
    * ``seed``;
    * ``provider`` (several may serve one model) and ``namespace`` (a tenant; never share across).

    JSON key order, 1.0 against 1, and inert fields (``user``, ``metadata``, request and trace ids,
    ``stream``, time stamps ...) do not matter. Raises :class:`DetdiagError` for a request that
    names no model.
    """
    if not request.get("model"):
        raise DetdiagError(
            "a request without a model has no key",
            tip="put the model's dated name into the body",
        )
    value = {
        "schema": KEY_SCHEMA,
        "request": canonical_request(request),
        "model_version": model_version,
        "provider": provider,
        "namespace": namespace,
    }
    text = json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=True
    )
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Cached:
    """``hit`` tells a stored ``answer`` from a fresh one; ``stored`` is seconds since the epoch."""

    answer: Any
    hit: bool
    key: str
    stored: float

    def marked(self) -> Any:
        """The answer, with ``"cache_hit": true`` in it where it is a JSON object from the store."""
        if self.hit and isinstance(self.answer, dict):
            return {**self.answer, HIT_FIELD: True}
        return self.answer


class ResponseCache:
    """Answers (anything that JSON holds) by key, in one SQLite file or in a directory.

    ``path`` that ends with a suffix (``answers.db``) is a file, any other a directory with one
    JSON file an answer. The first answer stored wins, so that processes that ask at the same time
    go on with the same one. Nothing expires by itself: a new ``model_version`` is a new key.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = self.path.is_file() or (bool(self.path.suffix) and not self.path.is_dir())
        try:
            if self._file:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with closing(self._open()) as db, db:
                    db.execute(
                        "CREATE TABLE IF NOT EXISTS answers "
                        "(key TEXT PRIMARY KEY, stored REAL NOT NULL, answer TEXT NOT NULL)"
                    )
            else:
                self.path.mkdir(parents=True, exist_ok=True)
        except (OSError, sqlite3.Error) as error:
            raise DetdiagError(f"cannot use this as a cache: {error}", path=path) from error

    def get(self, key: str) -> Cached | None:
        """The stored answer, or None."""
        found = self._read(key)
        return None if found is None else Cached(json.loads(found[1]), True, key, found[0])

    def put(self, key: str, answer: Any) -> Cached:
        """Store ``answer`` unless one is stored; what is returned is what the store holds then."""
        text = json.dumps(answer, ensure_ascii=False)
        now = time.time()
        if self._file:
            with closing(self._open()) as db, db:
                made = db.execute(
                    "INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (key, now, text)
                ).rowcount
        else:
            made = self._link(key, json.dumps({"key": key, "stored": now, "answer": answer}))
        kept = None if made else self.get(key)
        return kept or Cached(json.loads(text), False, key, now)

    def answer(self, request: Mapping[str, Any], call: Callable[[], Any], **version: str) -> Cached:
        """The stored answer to ``request``, else that of ``call()``, which is stored.

        ``version`` are the keyword arguments of :func:`request_key`.
        """
        key = request_key(request, **version)
        return self.get(key) or self.put(key, call())

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30.0)

    def _entry(self, key: str) -> Path:
        return self.path / (hashlib.sha256(key.encode()).hexdigest() + ".json")

    def _read(self, key: str) -> tuple[float, str] | None:
        if self._file:
            with closing(self._open()) as db:
                row = db.execute(
                    "SELECT stored, answer FROM answers WHERE key = ?", (key,)
                ).fetchone()
            return None if row is None else (float(row[0]), str(row[1]))
        try:
            raw = json.loads(self._entry(key).read_text("utf-8"))
        except FileNotFoundError:
            return None
        return float(raw["stored"]), json.dumps(raw["answer"])

    def _link(self, key: str, text: str) -> int:
        import os
        import tempfile

        handle, partial = tempfile.mkstemp(dir=self.path, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            os.link(partial, self._entry(key))
        except FileExistsError:
            return 0
        finally:
            os.unlink(partial)
        return 1
