"""Effective settings of one check, each with where it came from."""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.gate.levels import LEVELS, Level, RuleLevels, pattern_fault
from detdiag.gate.options import BY_KEY, DEFAULTS, MIN_RUNS, OPTIONS, Option
from detdiag.gate.toml_lines import Path as KeyPath
from detdiag.gate.toml_lines import key_lines
from detdiag.gate.values import checked
from detdiag.gate.waivers import Waiver, parse_waiver
from detdiag.verdict.stats import runs_for_bound

FILE_NAME: Final = "detdiag.toml"
TABLES: Final = ("rules", "waiver")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from: ``--option``, ``detdiag.toml:7``, ``default of pr`` ..."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the gate goes by. ``values`` holds every key of ``options.OPTIONS`` that is set;
    ``file`` is the settings file that was read, if any."""

    values: Mapping[str, Setting] = field(default_factory=dict)
    rules: RuleLevels = field(default_factory=RuleLevels)
    waivers: tuple[Waiver, ...] = ()
    file: Path | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """The effective value of ``key``."""
        found = self.values.get(key)
        return default if found is None else found.value

    def origin(self, key: str) -> str | None:
        found = self.values.get(key)
        return None if found is None else found.origin


@dataclass(frozen=True, slots=True)
class FileSettings:
    """What a settings file says, checked, with ``path:line`` origins."""

    path: Path | None = None
    values: Mapping[str, Setting] = field(default_factory=dict)
    rules: RuleLevels = field(default_factory=RuleLevels)
    waivers: tuple[Waiver, ...] = ()


def find_file(start: Path) -> Path | None:
    """``detdiag.toml``, or a ``pyproject.toml`` with ``[tool.detdiag]``, in ``start`` or above it,
    no higher than the repository (the folder that holds ``.git``)."""
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
        project = folder / "pyproject.toml"
        if project.is_file() and re.search(rb"^\s*\[+tool\.detdiag\b", project.read_bytes(), re.M):
            return project
        if (folder / ".git").exists():
            return None
    return None


def read_file(path: Path) -> FileSettings:
    """Read and check one settings file; every fault is a :class:`DetdiagError` with its line."""
    text = _text(path)
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DetdiagError(
            f"not valid TOML: {_without_place(str(error))}", path=path, line=_line_of(error, text)
        ) from error
    prefix: KeyPath = ()
    if path.name == "pyproject.toml":
        prefix = ("tool", "detdiag")
        raw = raw.get("tool", {}).get("detdiag", {})
    return _Reader(path, raw, key_lines(text), prefix).read()


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise DetdiagError("expected UTF-8 text", path=path, line=line) from error
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=path) from error


def _without_place(message: str) -> str:
    return re.sub(r" \(at (line \d+, column \d+|end of document)\)$", "", message)


def _line_of(error: Exception, text: str) -> int:
    found = re.search(r"at line (\d+)", str(error))
    return int(found[1]) if found else text.count("\n") + 1


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    raw: Mapping[str, Any]
    lines: Mapping[KeyPath, int]
    prefix: KeyPath

    def read(self) -> FileSettings:
        known = [*BY_KEY, *TABLES]
        for key in self.raw:
            if key not in known:
                raise self._unknown(key, known)
        values = {
            key: Setting(self._checked(BY_KEY[key], value), self._origin(key))
            for key, value in self.raw.items()
            if key in BY_KEY
        }
        return FileSettings(self.path, values, self._rules(), self._waivers())

    def _line(self, *keys: str | int) -> int:
        path = (*self.prefix, *keys)
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def _origin(self, *keys: str | int) -> str:
        return f"{self.path.name}:{self._line(*keys)}"

    def _fault(self, message: str, *keys: str | int) -> DetdiagError:
        return DetdiagError(message, path=self.path, line=self._line(*keys))

    def _unknown(self, key: str, known: list[str]) -> DetdiagError:
        close = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
        tip = f"did you mean {close[0]!r}?" if close else "known keys: " + ", ".join(known)
        return self._fault(f"unknown key {key!r}; {tip}", key)

    def _checked(self, option: Option, value: Any) -> Any:
        try:
            found = checked(option, value)
        except ValueError as error:
            raise self._fault(f"{option.key}: {error}", option.key) from None
        if option.kind == "path":
            return self._relative(found, option.key)
        return (
            tuple(self._relative(p, option.key) for p in found)
            if option.kind == "paths"
            else (found)
        )

    def _relative(self, text: str, key: str) -> str:
        """Paths are relative to the file, and shown from the working folder, as CI formats need
        them; a model may also be a hub id."""
        near = self.path.parent / text
        if Path(text).is_absolute() or (key == "model" and not near.exists()):
            return text
        return os.path.relpath(near)

    def _rules(self) -> RuleLevels:
        table = self.raw.get("rules", {})
        if not isinstance(table, Mapping):
            raise self._fault("rules: expected a table of rule = 'off', 'warn' or 'error'", "rules")
        entries: dict[str, Level] = {}
        origins: dict[str, str] = {}
        for pattern, level, keys in _flat(table, ("rules",)):
            if level not in LEVELS:
                close = difflib.get_close_matches(str(level), LEVELS, n=1)
                tip = f"did you mean {close[0]!r}?" if close else "expected off, warn or error"
                raise self._fault(f"{pattern}: level {level!r} is not known; {tip}", *keys)
            wrong = pattern_fault(pattern)
            if wrong:
                raise self._fault(wrong, *keys)
            entries[pattern], origins[pattern] = level, self._origin(*keys)
        return RuleLevels(entries, origins)

    def _waivers(self) -> tuple[Waiver, ...]:
        rows = self.raw.get("waiver", [])
        if not isinstance(rows, list):
            raise self._fault("waivers are written as [[waiver]] tables", "waiver")
        return tuple(self._waiver(index, raw) for index, raw in enumerate(rows))

    def _waiver(self, index: int, raw: Any) -> Waiver:
        def fault(message: str, key: str | None) -> DetdiagError:
            return self._fault(message, "waiver", index, *([key] if key else []))

        waiver = parse_waiver(raw, fault, self._origin("waiver", index))
        wrong = pattern_fault(waiver.rule) if waiver.rule else None
        if wrong:
            raise fault(wrong, "rule")
        return waiver


def _flat(
    table: Mapping[str, Any], keys: tuple[str, ...]
) -> list[tuple[str, Any, tuple[str, ...]]]:
    """``config.greedy = "off"`` without quotes is a nested table in TOML: it means the same."""
    out: list[tuple[str, Any, tuple[str, ...]]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            out += _flat(value, (*keys, key))
        else:
            out.append((".".join((*keys[1:], key)), value, (*keys, key)))
    return out


TARGETS: Final = ("model", "endpoint", "case")


def resolve(given: Mapping[str, Any], file: FileSettings, *, demo: bool = False) -> Settings:
    """The command line over the file over the profile's defaults.

    ``given`` holds what the command line set, by key; a target there (``demo``: the embedded
    models) replaces the file's. Raises :class:`DetdiagError` where the number of runs cannot show
    the bound that is asked for.
    """
    values: dict[str, Setting] = dict(file.values)
    for key, value in given.items():
        try:
            values[key] = Setting(checked(BY_KEY[key], value), f"--{key}")
        except ValueError as error:
            raise DetdiagError(f"--{key}: {error}") from None
    if demo or any(key in given for key in TARGETS):
        for key in TARGETS:
            if key not in given:
                values.pop(key, None)
    if "profile" not in values:
        live = demo or any(key in values for key in TARGETS)
        why = "default with a target" if live else "default without a target"
        values["profile"] = Setting("pr" if live else "quick", why)
    profile = values["profile"].value
    for key, value in DEFAULTS[profile].items():
        values.setdefault(key, Setting(value, f"default of {profile}"))
    _with_runs(values, file)
    ordered = {option.key: values[option.key] for option in OPTIONS if option.key in values}
    return Settings(ordered, file.rules, file.waivers, file.path)


def _with_runs(values: dict[str, Setting], file: FileSettings) -> None:
    if "bound" not in values:
        return
    bound, confidence = values["bound"].value, values["confidence"].value
    needed = runs_for_bound(bound, confidence)
    if "runs" not in values:
        why = f"{needed} exclude {100 * bound:g} % at {100 * confidence:g} %"
        values["runs"] = Setting(max(MIN_RUNS, needed), why)
        return
    runs = values["runs"]
    if runs.value < needed:
        raise DetdiagError(
            f"runs = {runs.value} ({runs.origin}) cannot exclude a rate of {bound:g} at "
            f"confidence {confidence:g}: {needed} equal runs are needed",
            path=file.path if "toml" in runs.origin else None,
            line=int(runs.origin.rpartition(":")[2]) if "toml" in runs.origin else None,
            tip=f"the best bound of {runs.value} runs is "
            f"{1 - math.pow(1 - confidence, 1 / runs.value):.2g}",
        )
