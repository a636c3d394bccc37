"""Line numbers of TOML keys, which ``tomllib`` does not keep.

Only for text that ``tomllib`` has accepted: the scanner relies on the text being valid TOML 1.0.
"""

from __future__ import annotations

from typing import Final

Path = tuple[str | int, ...]
_BARE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def key_lines(text: str) -> dict[Path, int]:
    """``{("rules", "batch"): 7, ("waiver", 0): 12, ("waiver", 0, "owner"): 14}``: 1-based lines.

    Tables are placed at their header, elements of an array of tables at their index; elements of
    an inline array are not placed.
    """
    return _Scanner(text.replace("\r\n", "\n")).run()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.table: Path = ()
        self.counts: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        while self._skip_blank():
            if self.text.startswith("[[", self.at):
                self._array_header()
            elif self.text[self.at] == "[":
                self._header()
            else:
                self._assignment(self.table)
        return self.lines

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _skip_blank(self, *, newlines: bool = True) -> bool:
        """Skip white space and comments; False at the end of the text."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t" or (newlines and char in "\n\ufeff"):
                self.at += 1
            else:
                return True
        return False

    def _place(self, path: Path, line: int) -> None:
        for stop in range(1, len(path) + 1):
            self.lines.setdefault(path[:stop], line)

    def _header(self) -> None:
        line = self._line()
        self.at += 1
        self.table = self._resolved(self._key())
        self._place(self.table, line)
        self.at = self.text.index("]", self.at) + 1

    def _array_header(self) -> None:
        line = self._line()
        self.at += 2
        keys = self._key()
        base = (*self._resolved(keys[:-1]), keys[-1])
        index = self.counts.get(base, 0)
        self.counts[base] = index + 1
        self.table = (*base, index)
        self._place(self.table, line)
        self.at = self.text.index("]]", self.at) + 2

    def _resolved(self, keys: Path) -> Path:
        """Names of an array of tables stand for its last element."""
        out: Path = ()
        for key in keys:
            out = (*out, key)
            if out in self.counts:
                out = (*out, self.counts[out] - 1)
        return out

    def _key(self) -> Path:
        parts: list[str | int] = []
        while True:
            self._skip_blank(newlines=False)
            parts.append(self._key_part())
            self._skip_blank(newlines=False)
            if self._peek() != ".":
                return tuple(parts)
            self.at += 1

    def _key_part(self) -> str:
        start = self.at
        if self._peek() in "\"'":
            import tomllib

            self._string()
            quoted = self.text[start : self.at]
            return next(iter(tomllib.loads(f"{quoted} = 0")))
        while self._peek() in _BARE and self._peek():
            self.at += 1
        return self.text[start : self.at]

    def _assignment(self, table: Path) -> None:
        line = self._line()
        path = (*table, *self._key())
        self._place(path, line)
        self.at = self.text.index("=", self.at) + 1
        self._skip_blank(newlines=False)
        self._value(path)

    def _value(self, path: Path) -> None:
        char = self._peek()
        if char and char in "\"'":
            self._string()
        elif char == "[":
            self._array(path)
        elif char == "{":
            self._inline(path)
        else:
            while self._peek() and self._peek() not in ",]}#\n":
                self.at += 1

    def _string(self) -> None:
        mark = self.text[self.at]
        long = self.text.startswith(mark * 3, self.at)
        fence = mark * 3 if long else mark
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            self.at += 2 if mark == '"' and self.text[self.at] == "\\" else 1
        self.at += len(fence)
        while long and self._peek() == mark:
            self.at += 1  # up to two quotes may stand before the closing three

    def _array(self, path: Path) -> None:
        self.at += 1
        while self._skip_blank() and self._peek() != "]":
            if self._peek() == ",":
                self.at += 1
            else:
                self._value(path)
        self.at += 1

    def _inline(self, path: Path) -> None:
        self.at += 1
        while self._skip_blank() and self._peek() != "}":
            if self._peek() == ",":
                self.at += 1
            else:
                self._assignment(path)
        self.at += 1
