"""What to say, and what to run next, where a live server leaves more than one explanation."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding
from detdiag.verdict.endpoint.idle import Idle
from detdiag.verdict.endpoint.load_arms import LoadResult, bursts_needed, load_counts, witness_text
from detdiag.verdict.endpoint.masking import Masked
from detdiag.verdict.report_object import Next
from detdiag.verdict.residue import FAR_ABOVE_ROUNDING_NAT


@dataclass(frozen=True, slots=True)
class Open:
    """An inconclusive sentence with the experiments that would settle it; ``confounded`` are the
    explanations that cannot be told apart."""

    sentence: str
    next: tuple[Next, ...]
    confounded: tuple[str, ...] = ()


LONGER: Final = 8
"""Step by which an answer that was cut is made longer the next time."""
POOL: Final = ("replica", "other tenants' load")


def command_of(case: Case) -> str:
    return str(case.method.get("command") or "detdiag run --endpoint URL --model-name M")


def again(case: Case, **options: object) -> str:
    """The command with these options set to other values."""
    words = shlex.split(command_of(case))
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        while flag in words:
            del words[words.index(flag) : words.index(flag) + 2]
        words = [w for w in words if not w.startswith(f"{flag}=")] + [flag, str(value)]
    return shlex.join(words)


def masked_open(case: Case, hidden: Masked) -> Open:
    finding = hidden.finding()
    assert finding is not None
    return Open(
        f"Inconclusive: {finding.summary}.",
        (Next("ask past the response cache", _past_cache(case)),),
    )


def _past_cache(case: Case) -> str:
    """LiteLLM 1.108 reads the body only; other gateways the header."""
    if case.target.get("engine") == "litellm":
        return 'LiteLLM: "cache": {"no-cache": true} in the file of --request'
    return f'{command_of(case)} --header "Cache-Control: no-cache"'


def stopped_open(case: Case, why: str, answered: int) -> Open:
    return Open(
        f"Inconclusive: the server stopped answering after {answered} replies ({why}); what came "
        "before is in the record.",
        (Next("go on when the server answers again", again(case, resume="RECORD")),),
    )


def cut_open(case: Case, why: str, replies: int) -> Open:
    """Nothing differed, but the load arm that was asked for did not finish."""
    budget = case.method.get("budget_s")
    more = f"{4 * float(budget):.0f}s" if isinstance(budget, (int, float)) else "15m"
    grow: dict[str, object]
    requests = 2 * int(case.method.get("max_requests") or 600)
    grow = {"max_requests": requests} if "requests" in why else {"budget": more}
    return Open(
        f"Inconclusive: {replies} replies agree, but the bursts that test load were cut short "
        f"({why}).",
        (Next("give the load arm more room", again(case, **grow)),),
    )


def reuse_open(what: str) -> Open:
    """Answers that go with the cached tokens of replies that any of several servers gave."""
    return Open(
        f"Inconclusive: {what}: a prefix cache and replicas with caches of their own cannot be "
        "told apart from outside.",
        (
            Next(
                "ask one replica directly, cold and warm",
                "detdiag run --endpoint http://ONE-REPLICA:PORT --model-name M",
            ),
        ),
        ("cached_tokens", "replica"),
    )


def draw_open(case: Case, idle: Idle) -> Open:
    """A server of our own that does not repeat, seen by its text alone."""
    return Open(
        f"Inconclusive: one request at a time on a server that nobody else uses gives "
        f"{idle.words()}: without log-probabilities a draw and an operator that does not repeat "
        "cannot be told apart.",
        (
            Next(
                "start the server with log-probabilities, or send top_k 1 in the file of --request",
                command_of(case),
            ),
        ),
        ("sampler", "operator"),
    )


def pool_open(case: Case, idle: Idle, change_nat: float | None, *, undrawn: bool) -> Open:
    """A control that fails at idle with no label to go with it."""
    far = change_nat is not None and change_nat > FAR_ABOVE_ROUNDING_NAT
    size = "" if change_nat is None else f" by up to {change_nat:.3g} nat"
    guard = (
        " The change is larger than rounding usually gives: other weights, another quantisation "
        "or another input on some replicas is likelier than kernels."
        if far
        else ""
    )
    drawn = "" if undrawn else " Without log-probabilities a draw is possible too."
    kinds = (
        "unordered reductions or other tenants' load"
        if idle.spread == "continuous"
        else "a replica pool or other tenants' load"
    )
    return Open(
        f"Inconclusive: one idle request at a time gives {idle.words()}{size}, with no label, "
        f"connection or time to go with it: {kinds} cannot be told apart from outside.{guard}"
        f"{drawn}",
        (
            Next(
                "ask one server directly while nobody else does: its counters then show that all "
                "requests are ours",
                "detdiag run --endpoint http://ONE-REPLICA:PORT --model-name M",
            ),
            Next(
                "pin the route, or repeat off-peak: a pool stays, other tenants' load goes",
                'OpenRouter: "provider": {"only": ["NAME"], "allow_fallbacks": false} in the file '
                "of --request",
            ),
        ),
        POOL,
    )


def change_open(case: Case, before: int, after: int, p: float) -> Open:
    return Open(
        f"Inconclusive: {before} equal idle answers are followed by {after} other equal ones, one "
        f"change and never back (p = {p:.2g}): a deployment, a route that moved or other "
        "tenants' load that began cannot be told apart from outside.",
        (
            Next(
                "compare again later: a deployment stays, load goes",
                again(case, baseline="RECORD"),
            ),
        ),
        POOL,
    )


def load_open_case(case: Case, result: LoadResult, p: float) -> Open:
    """Bursts that differ without enough bursts, witness or smallness to blame load."""
    far = result.change_nat is not None and result.change_nat > FAR_ABOVE_ROUNDING_NAT
    if p > 0.01:
        needed = bursts_needed(result)
        return Open(
            f"Inconclusive: {load_counts(result)}, too few to tell load from chance (p = {p:.2g}); "
            f"about {needed} bursts would.",
            (
                Next(
                    f"run about {needed} bursts and as many idle blocks",
                    again(case, max_requests=needed * 16 + 200, budget="15m"),
                ),
            ),
            ("concurrency", "replica"),
        )
    why = (
        f"by up to {result.change_nat:.3g} nat, more than rounding usually gives"
        if far and result.witness != "none"
        else witness_text(result)
    )
    return Open(
        f"Inconclusive: {load_counts(result)} (p = {p:.2g}), but {why}: batch effects and a router "
        "that sends bursts to another replica cannot be told apart.",
        (
            Next(
                "let the server count its running requests, or ask one replica directly",
                "vLLM and TGI serve /metrics as they are; SGLang and llama.cpp with "
                "--enable-metrics / --metrics",
            ),
        ),
        ("concurrency", "replica"),
    )


def few_open(case: Case, differing: Sequence[str]) -> Open:
    shown = " and ".join(differing) or "some replies"
    return Open(
        f"Inconclusive: answers differ with {shown}, but too few repeats support it.",
        (Next("repeat with more requests", again(case, max_requests=1000)),),
    )


def further(case: Case, findings: Sequence[Finding]) -> tuple[Next, ...]:
    """What a clean verdict leaves open: answers longer than those that were cut."""
    tokens = next((f.data["cut_at_tokens"] for f in findings if f.data.get("cut_at_tokens")), None)
    if tokens is None:
        return ()
    return (
        Next(
            f"answers were cut at {tokens} tokens; what longer ones do under load is not tested",
            again(case, max_new_tokens=LONGER * tokens),
        ),
    )
