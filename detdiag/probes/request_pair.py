"""Two requests that should have been one: their bytes, their token ids, and what each answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from detdiag.evidence.finding import Evidence, Finding, Locus
from detdiag.evidence.observation import Observation
from detdiag.evidence.record import Event
from detdiag.inputs.findings import failed_finding, request_findings
from detdiag.inputs.json_text import parse_json, plain
from detdiag.inputs.tokens_diff import TokenDiff, diff_tokens
from detdiag.probes.interface import ProbeContext
from detdiag.probes.runs import GREEDY, Reference, bench, free_observation
from detdiag.targets.prompts import Prompt

REPEATS: Final = 2
QUERY: Final = "request pair"


@dataclass(frozen=True, slots=True)
class Side:
    """One request as the target reads it."""

    name: str
    body: Mapping[str, Any]
    prompt: Prompt
    ids: tuple[int, ...]


def pair_events(
    context: ProbeContext, a: tuple[str, bytes], b: tuple[str, bytes]
) -> Iterator[Event]:
    """Static findings of the pair, its runs, and whether the answers go with the bytes."""
    findings = request_findings(a[1], b[1], (a[0], b[0]))
    failed = [f for f in findings if f.outcome == "failed" and f.layer == "input"]
    for finding in findings:
        if "input_diff" in finding.data:
            yield ("input_diff", finding.data["input_diff"])
        if finding not in failed:
            yield finding
    sides = [_side(context, *item) for item in (a, b)]
    if not failed or None in sides:
        yield from failed
        return
    left, right = (side for side in sides if side is not None)
    ids = diff_tokens(left.ids, right.ids, bos_id=context.target.tokenizer.bos_token_id)
    runs: dict[str, list[Observation]] = {left.name: [], right.name: []}
    if not ids.equal:
        for observation in _runs(context, left, right):
            runs[str(observation.factors["client"])].append(observation)
            yield observation
    yield _judged(failed[0], ids, runs)


def _side(context: ProbeContext, name: str, raw: bytes) -> Side | None:
    body = plain(parse_json(raw, name))
    if not isinstance(body, dict):
        return None
    messages, text = body.get("messages"), body.get("prompt")
    if isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages):
        if not getattr(context.target.tokenizer, "chat_template", None):
            return None
        prompt = Prompt(QUERY, None, tuple(messages))
    elif isinstance(text, str):
        prompt = Prompt(QUERY, text)
    else:
        return None
    return Side(name, body, prompt, context.target.encode(prompt))


def _runs(context: ProbeContext, left: Side, right: Side) -> Iterator[Observation]:
    """Greedy answers of both requests, turn by turn; short ones, as a control is worth more than
    length."""
    tokens = min(context.plan.max_new_tokens, 16 if context.remaining_s() > 1 else 4)
    for repeat in range(REPEATS):
        for side in (left, right):
            made = context.target.generate([side.ids], max_new_tokens=tokens, **GREEDY)[0]
            yield free_observation(
                bench(context).next_id("pair"),
                Reference(side.prompt, side.ids, made.token_ids),
                made,
                {"client": side.name, "batch_size": 1, "do_sample": False, "repeat": repeat},
                context.target.tokenizer,
                request=side.body,
            )


def _judged(finding: Finding, ids: TokenDiff, runs: Mapping[str, list[Observation]]) -> Finding:
    """Proven where each request repeats its own answer (or logits) and the two differ."""
    locus = Locus(query=QUERY, token=ids.first_difference)
    if ids.equal:
        return Finding(
            "input",
            finding.rule,
            "inconclusive",
            f"{finding.summary}; both become the same {ids.length_a} token ids here",
            severity="low",
            locus=locus,
            data=finding.data,
        )
    answers = [{_answer(o) for o in group} for group in runs.values()]
    repeat = all(len(group) == 1 for group in answers) and all(
        len(group) > 1 for group in runs.values()
    )
    differ = not set.intersection(*answers)
    rule = "input.doubled-bos" if ids.has("doubled-bos") else finding.rule
    words = _words(runs, differ, repeat)
    counts = [len(group) for group in runs.values()]
    return failed_finding(
        rule,
        f"{finding.summary}; token ids differ from index {ids.first_difference} "
        f"({ids.length_a} and {ids.length_b}); {words} ({counts[0]} and {counts[1]} runs)",
        evidence=(
            Evidence("answers of the two requests differ", int(differ), 1, "pair of requests"),
            Evidence(
                "control: runs of one request differ",
                sum(len(group) - 1 for group in answers),
                sum(counts) - len(counts),
                "repeats",
            ),
        ),
        locus=locus,
        mechanism=differ,
        proven=repeat and differ,
        explains=("client", "prompt_digest", "prompt_token_ids"),
        data={**finding.data, "token_diff": ids.to_dict()},
    )


def _words(runs: Mapping[str, list[Observation]], differ: bool, repeat: bool) -> str:
    if not differ:
        return "the answers and their first logits agree"
    tokens = {o.output.token_ids for group in runs.values() for o in group}
    what = "the two answer alike, with other logits" if len(tokens) == 1 else "the answers differ"
    return f"each request repeats itself and {what}" if repeat else what


def _answer(observation: Observation) -> tuple[Any, Any]:
    """Tokens and the bits of the first logit row, which both see the whole prompt."""
    digests = observation.output.logit_digests
    return observation.output.token_ids, digests[0] if digests else None
