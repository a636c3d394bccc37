"""Input findings from observations: what runs of one query differ in as inputs.

A difference is a mechanism only where the outcome goes with it: equal inputs repeat, other
inputs give other outputs. Both counts are in the finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from detdiag.evidence.finding import Evidence, Finding, Locus
from detdiag.evidence.observation import Observation
from detdiag.inputs.canonical import ordered_digest, prompt_part
from detdiag.inputs.findings import (
    describe_change,
    failed_finding,
    prompt_finding,
    request_findings,
)
from detdiag.inputs.json_diff import Change, diff_json, path_keys
from detdiag.inputs.tokens_diff import TokenDiff, diff_tokens
from detdiag.inputs.volatile import Volatile, compare_renders
from detdiag.layers import CONTROL_FACTOR, FACTOR_LAYERS, ORDER_FACTORS, Layer

_FACTORS: Final = tuple(f for f, layer in FACTOR_LAYERS.items() if layer == "input")
_MAX_PAIRS: Final = 40


def static_input_findings(
    *,
    prompts: tuple[bytes, bytes] | None = None,
    requests: tuple[bytes, bytes] | None = None,
    observations: Sequence[Observation] = (),
) -> list[Finding]:
    """All input findings of a case folder; the file pairs are raw bytes as found on disk.

    A request pair may also yield findings of layers ``config`` and ``version`` (another
    parameter, another model name). Raises :class:`DetdiagError` for a body that is not JSON.
    """
    out: list[Finding] = []
    if prompts is not None:
        out.append(prompt_finding(*prompts))
    if requests is not None:
        out += request_findings(*requests)
    return out + observation_findings(observations)


@dataclass(slots=True)
class _Tally:
    """How outcomes go with inputs over matched pairs: ``across`` other inputs, ``within`` equal."""

    across_k: int = 0
    across_n: int = 0
    within_k: int = 0
    within_n: int = 0

    @property
    def goes_with_input(self) -> bool:
        return self.across_k > 0 and self.within_k == 0 and self.within_n > 0

    def evidence(self) -> tuple[Evidence, ...]:
        return (
            Evidence("outputs differ with the input", self.across_k, self.across_n, "pairs"),
            Evidence("control: equal inputs differ", self.within_k, self.within_n, "pairs"),
        )


def observation_findings(observations: Sequence[Observation]) -> list[Finding]:
    """What observations of one query differ in as inputs: request bytes, then token ids."""
    groups: dict[str, list[Observation]] = {}
    for observation in observations:
        if observation.query is not None and observation.role == "trial":
            groups.setdefault(observation.query, []).append(observation)
    requests, tokens = _Gathered(), _Gathered()
    for query, group in groups.items():
        _compare_requests(query, group, requests)
        _compare_tokens(query, group, tokens)
    return [*requests.findings(), *tokens.findings()]


class _Gathered:
    """One finding a rule, with the counts of all queries and the first query as the example."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[str, str, dict[str, Any], set[str]]] = {}
        self.tallies: dict[str, _Tally] = {}
        self.queries: dict[str, int] = {}

    def add(
        self,
        rule: str,
        query: str,
        summary: str,
        data: dict[str, Any],
        group: Sequence[Observation],
        key: Callable[[Observation], Any],
        owners: frozenset[str] = frozenset(),
    ) -> None:
        """``owners`` are version factors that settle the input: what the finding explains."""
        tally = self.tallies.setdefault(rule, _Tally())
        _count(group, key, tally, owners)
        self.queries[rule] = self.queries.get(rule, 0) + 1
        explains = set(owners) or _varying(group) | {"prompt_digest", "prompt_token_ids", "client"}
        if _repeats_mix_inputs(group, key):
            explains.add(CONTROL_FACTOR)
        held = self.first.setdefault(rule, (query, summary, data, set()))
        held[3].update(explains)

    def findings(self) -> list[Finding]:
        return [self._finding(rule) for rule in self.first]

    def _finding(self, rule: str) -> Finding:
        query, summary, data, explains = self.first[rule]
        tally = self.tallies[rule]
        count = self.queries[rule]
        layer: Layer = "version" if rule.startswith("version.") else "input"
        return failed_finding(
            rule,
            f"{count} {'query' if count == 1 else 'queries'}: {summary}",
            layer=layer,
            evidence=tally.evidence(),
            locus=Locus(query=query),
            mechanism=tally.goes_with_input,
            explains=tuple(sorted(explains)),
            data=data,
        )


def _compare_requests(query: str, group: Sequence[Observation], out: _Gathered) -> None:
    withs = [o for o in group if o.request is not None]
    variants: dict[str, Observation] = {}
    for observation in withs:
        variants.setdefault(_prompt_key(observation), observation)
    if len(variants) < 2:
        return
    first, second = list(variants.values())[:2]
    changes = [
        change
        for change in diff_json(prompt_part(first.request or {}), prompt_part(second.request or {}))
        if change.reach == "prompt"
    ]
    if not changes:
        return
    rule, summary, data = _request_rule(changes, withs)
    names = (f"{query}: {first.id}", f"{query}: {second.id}")
    text = next((c for c in changes if c.text_diff is not None), None)
    if text is not None and text.text_diff is not None:
        data["input_diff"] = text.text_diff.to_dict(*(f"{n} {text.path}" for n in names))
    out.add(rule, query, summary, data, withs, _prompt_key)


def _request_rule(
    changes: Sequence[Change], group: Sequence[Observation]
) -> tuple[str, str, dict[str, Any]]:
    data: dict[str, Any] = {"changes": [change.to_dict() for change in changes]}
    shown = describe_change(changes[0])
    if all(change.kind == "order" for change in changes):
        return "input.key-order", f"the same JSON in another key order at {shown}", data
    volatile = _volatile(changes, group)
    if volatile:
        path, found = volatile
        data["volatile"] = [v.to_dict() for v in found]
        kinds = ", ".join(sorted({v.kind for v in found}))
        return (
            "input.volatile-content",
            f"the prompt carries content that changes from call to call ({kinds}) at {path}",
            data,
        )
    return "input.bytes-differ", f"prompts differ at {shown}", data


def _volatile(
    changes: Sequence[Change], group: Sequence[Observation]
) -> tuple[str, tuple[Volatile, ...]] | None:
    """Where *all* differences are clocks, ids or counters: the path and the places."""
    if any(change.kind != "text" for change in changes):
        return None
    found: list[Volatile] = []
    for change in changes:
        texts = [t for o in group if (t := _at(o.request, change.path)) is not None]
        found += compare_renders(texts[:12])
    if not found or any(v.kind == "varies" for v in found):
        return None
    return changes[0].path, tuple(found)


def _at(request: Mapping[str, Any] | None, path: str) -> str | None:
    """The string at a path as :func:`detdiag.inputs.json_diff.json_path` writes it."""
    value: Any = request
    for key in path_keys(path):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value if isinstance(value, str) else None


def _compare_tokens(query: str, group: Sequence[Observation], out: _Gathered) -> None:
    """Token ids that differ where the prompt bytes do not (or are not recorded)."""
    by_prompt: dict[str, list[Observation]] = {}
    for observation in group:
        if observation.prompt_token_ids is not None:
            by_prompt.setdefault(_prompt_key(observation), []).append(observation)
    for members in by_prompt.values():
        variants: dict[tuple[int, ...], Observation] = {}
        for observation in members:
            variants.setdefault(observation.prompt_token_ids or (), observation)
        if len(variants) < 2:
            continue
        (ids_a, first), (ids_b, second) = list(variants.items())[:2]
        diff = diff_tokens(ids_a, ids_b)
        owners = _version_owners(members)
        rule, summary = _token_rule(diff, (first.id, second.id), owners)
        data = {"token_diff": diff.to_dict(), "observations": [first.id, second.id]}
        out.add(rule, query, summary, data, members, lambda o: o.prompt_token_ids, owners)


def _token_rule(diff: TokenDiff, ids: tuple[str, str], owners: frozenset[str]) -> tuple[str, str]:
    where = f"first at token {diff.first_difference}"
    if owners:
        names = " and ".join(sorted(owners))
        return (
            "version.tokenisation-changed",
            f"the same prompt becomes other token ids as {names} changes ({where})",
        )
    if diff.has("doubled-bos"):
        note = next(text for code, text in diff.notes if code == "doubled-bos")
        note = f"{ids[0] if note.startswith('a ') else ids[1]}{note[1:]}"
        return "input.doubled-bos", f"the same prompt as two id lists: {note}"
    return (
        "input.token-ids-differ",
        f"the same prompt as two id lists, {where} ({diff.length_a} and {diff.length_b} ids)",
    )


_TOKENISING: Final = frozenset(
    "engine engine_version library_versions tokenizer_digest model_reported "
    "system_fingerprint replica provider".split()
)
"""Version factors through which token ids can change at equal prompt bytes."""


def _version_owners(group: Sequence[Observation]) -> frozenset[str]:
    """Version factors that settle the token ids: each of their values has one id list."""
    names = {name for o in group for name in o.factors} & _TOKENISING
    return frozenset(name for name in names if _settles(name, group))


def _settles(name: str, group: Sequence[Observation]) -> bool:
    ids: dict[str, set[tuple[int, ...]]] = {}
    for observation in group:
        value = _text(observation.factors.get(name))
        ids.setdefault(value, set()).add(observation.prompt_token_ids or ())
    return len(ids) > 1 and all(len(lists) == 1 for lists in ids.values())


def _prompt_key(observation: Observation) -> str:
    """The rendered part of the request as ordered text: the identity of the prompt."""
    return ordered_digest(prompt_part(observation.request or {}))


def _condition(observation: Observation, owners: frozenset[str]) -> tuple[tuple[str, str], ...]:
    cache = ("cached_tokens", "prefix_cache")  # a hit or miss follows from the bytes
    ignored = {CONTROL_FACTOR, *ORDER_FACTORS, *_FACTORS, *cache, *owners}
    items = observation.factors.items()
    return tuple(sorted((name, _text(value)) for name, value in items if name not in ignored))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _outcome(observation: Observation) -> tuple[Any, Any] | None:
    output = observation.output
    if output.text is None and output.token_ids is None:
        return None
    return output.text, output.token_ids


def _count(
    group: Sequence[Observation],
    key: Callable[[Observation], Any],
    tally: _Tally,
    owners: frozenset[str],
) -> None:
    """Pairs that share every other condition; at most ``_MAX_PAIRS`` observations a condition."""
    by_condition: dict[Any, list[Observation]] = {}
    for observation in group:
        if _outcome(observation) is not None:
            by_condition.setdefault(_condition(observation, owners), []).append(observation)
    for members in by_condition.values():
        for left, right in combinations(members[:_MAX_PAIRS], 2):
            differ = _outcome(left) != _outcome(right)
            if key(left) == key(right):
                tally.within_n += 1
                tally.within_k += differ
            else:
                tally.across_n += 1
                tally.across_k += differ


def _varying(group: Sequence[Observation]) -> set[str]:
    return {name for name in _FACTORS if len({_text(o.factors.get(name)) for o in group}) > 1}


def _repeats_mix_inputs(group: Sequence[Observation], key: Callable[[Observation], Any]) -> bool:
    """Whether one recorded condition (input factors included) saw more than one input."""
    seen: dict[Any, set[Any]] = {}
    for observation in group:
        ignored = {CONTROL_FACTOR, *ORDER_FACTORS}
        condition = tuple(
            sorted((n, _text(v)) for n, v in observation.factors.items() if n not in ignored)
        )
        seen.setdefault(condition, set()).add(key(observation))
    return any(len(inputs) > 1 for inputs in seen.values())
