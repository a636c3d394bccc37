"""Fixed probes for a server: log-probabilities as bits, prompt lengths, token ids, answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from detdiag.evidence.observation import Observation
from detdiag.targets.endpoint import EndpointError, EndpointTarget
from detdiag.targets.endpoint.capabilities import TOKENIZE_BODIES, token_ids_of
from detdiag.targets.prompts import Prompt

PROBES: Final = (
    Prompt("capital", "What is the capital of France? Answer in one word."),
    Prompt("count", "Count from one to ten."),
    Prompt("rainbow", "Name three colours of the rainbow, then explain how a rainbow forms."),
    Prompt("code", "def add(a: int, b: int) -> int:\n    "),
    Prompt("accents", "Übersetze ins Englische: «Größe», naïve café, 東京."),
)
TOKENS: Final = 8
REPEATS: Final = 3
"""The first goes to a cold cache and is not compared; the others must agree to be a fact."""

_KEPT: Final = 5
"""Alternatives a position that are written out beside the digest."""


@dataclass(slots=True)
class Probing:
    """Observations by probe, and the token ids that the server gives the probes' texts."""

    observations: dict[str, list[Observation]] = field(default_factory=dict)
    token_ids: dict[str, list[int]] = field(default_factory=dict)

    def seen(self, factor: str) -> list[str]:
        """Distinct values of a factor over all replies, sorted."""
        found = (o.factors.get(factor) for rows in self.observations.values() for o in rows)
        return sorted({str(value) for value in found if value is not None})

    def facts(self) -> dict[str, Any]:
        """Facts of the probes that repeated: a server under load cannot make two
        fingerprints differ by chance."""
        out: dict[str, Any] = {
            "prompt_tokens": self._steady(_prompt_tokens),
            "tokenizer_probe_ids": self.token_ids,
        }
        digests = self._steady(_numerics)
        if digests:
            rows = {name: self.observations[name][-1] for name in digests}
            values = {name: _values(row) for name, row in rows.items()}
            out["numerics"] = {**_arithmetic(rows.values()), "digests": digests, "values": values}
        else:
            out["probe_text"] = self._steady(_text)
        return {key: value for key, value in out.items() if value}

    def unsteady(self) -> list[str]:
        """Probes whose replies differ between repeats."""
        steady = self._steady(lambda o: (_numerics(o), _text(o)))
        return [name for name in self.observations if name not in steady]

    def _steady(self, read: Callable[[Observation], Any]) -> dict[str, Any]:
        out = {}
        for name, rows in self.observations.items():
            values = [read(row) for row in rows[1:]]
            if values and values[0] is not None and all(v == values[0] for v in values):
                out[name] = values[0]
        return out


async def probe(target: EndpointTarget) -> Probing:
    """Send every probe :data:`REPEATS` times, one after the other, at temperature 0."""
    probing = Probing()
    for prompt in PROBES:
        if target.capabilities.tokenize:
            ids = await _tokenize(target, prompt.text or "")
            if ids:
                probing.token_ids[prompt.id] = ids
        probing.observations[prompt.id] = [
            await target.ask(prompt, max_tokens=TOKENS, phase="fingerprint") for _ in range(REPEATS)
        ]
    return probing


async def _tokenize(target: EndpointTarget, text: str) -> list[int]:
    for fields in TOKENIZE_BODIES:
        body = {name: target.model if name == "model" else text for name in fields}
        try:
            _, found = await target.client.post_json("/tokenize", body, retry=False)
        except EndpointError:
            continue
        ids = token_ids_of(found)
        if ids:
            return ids
    return []


def _arithmetic(observations: Iterable[Observation]) -> dict[str, Any]:
    """Type of the logits and the steps of their lattice, read from the values themselves."""
    from detdiag.verdict.endpoint.numerics import fingerprint  # brings pandas with its package

    found = fingerprint(observations)
    return {
        "output_dtype": found.dtype,
        "lattice_steps_nat": [step for step, _ in found.steps],
        "positions": found.positions,
    }


def _context(observation: Observation, key: str) -> Any:
    response = observation.response or {}
    found = response.get(key)
    return found if isinstance(found, Mapping) else {}


def _prompt_tokens(observation: Observation) -> int | None:
    value = _context(observation, "usage").get("prompt_tokens")
    return value if isinstance(value, int) else None


def _numerics(observation: Observation) -> str | None:
    value = _context(observation, "context").get("digest")
    return value if isinstance(value, str) else None


def _text(observation: Observation) -> str | None:
    text = observation.output.text
    if text is None:
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _values(observation: Observation) -> list[list[list[Any]]]:
    """A position: ``[[token, log-probability], ...]``, the chosen token first."""
    out = []
    for position in observation.output.positions or ():
        if position.logprob is None:
            break
        pairs = {str(position.token): float(position.logprob)}
        pairs |= {str(c.token): float(c.logprob) for c in position.top[:_KEPT]}
        out.append([[token, value] for token, value in pairs.items()])
    return out
