"""What every engine resolver shares: layered sources, rewrites and the greedy test's answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from detdiag.rules.condition import number, truth
from detdiag.rules.versions import Key, version_key

Decoding = Literal["greedy", "sampling", "tie-sampling", "unknown"]


@dataclass(frozen=True, slots=True)
class Param:
    """One effective parameter; ``ignored`` lists what lost, ``note`` tells about a rewrite."""

    value: Any
    origin: str
    ignored: tuple[str, ...] = ()
    note: str = ""


@dataclass(slots=True)
class Effective:
    """Effective parameters by common name and the answer of the engine's greedy test.

    ``keeps`` names the parameter that keeps sampling on; ``error`` is the engine's refusal.
    """

    params: dict[str, Param] = field(default_factory=dict)
    decoding: Decoding = "unknown"
    why: str = ""
    keeps: str = "temperature"
    error: str = ""

    def number(self, name: str) -> float | None:
        """The effective value as a number, None when it is not one."""
        param = self.params.get(name)
        return None if param is None else number(param.value)

    def truth(self, name: str) -> bool | None:
        """The effective value as a switch."""
        param = self.params.get(name)
        return None if param is None or param.value is None else truth(param.value)

    def rewrite(self, name: str, value: Any, note: str) -> None:
        """Replace a value, keeping where it came from and what it was."""
        before = self.params.get(name, Param(None, "engine"))
        lost = () if before.value is None else (f"{before.origin}: {before.value}",)
        self.params[name] = replace(
            before, value=value, ignored=(*before.ignored, *lost), note=note
        )

    def decide(self, decoding: Decoding, why: str, keeps: str = "temperature") -> Effective:
        """Record the greedy test's answer."""
        self.decoding, self.why, self.keeps = decoding, why, keeps
        return self


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that one deployment says, by common parameter names where a request is concerned.

    ``key`` is the version that this resolution is for. ``has_request`` is False where only a
    launch line or a model file is known: the answer then holds for a request that sets nothing.
    """

    surface: str
    key: Key
    request: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    passed: Mapping[str, Any] | None = None
    file: Mapping[str, Any] | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    modelfile: Mapping[str, Any] | None = None
    has_request: bool = False
    has_launch: bool = False

    def since(self, version: str) -> bool:
        """Whether the version in question is ``version`` or later."""
        return self.key >= version_key(version)

    def switch(self, flag: str) -> bool | None:
        """A launch switch: True, False, or None where the line does not say."""
        value = self.flags.get(flag)
        return None if value is None else truth(value)


Source = tuple[str, Mapping[str, Any] | None]


def layered(sources: Iterable[Source], only: Iterable[str] | None = None) -> Effective:
    """First source that sets a name wins; the values of the later ones are kept as ignored."""
    effective = Effective()
    wanted = None if only is None else set(only)
    for origin, values in sources:
        for name, value in (values or {}).items():
            if value is None or (wanted is not None and name not in wanted):
                continue
            before = effective.params.get(name)
            if before is None:
                effective.params[name] = Param(value, origin)
            elif before.value != value:
                effective.params[name] = replace(
                    before, ignored=(*before.ignored, f"{origin}: {value}")
                )
    return effective


SAMPLING_NAMES = (
    "temperature top_p top_k min_p typical_p seed n do_sample num_beams repetition_penalty "
    "presence_penalty frequency_penalty max_tokens stop"
).split()
