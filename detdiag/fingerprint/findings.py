"""Findings of layer ``version`` from two fingerprints: one for each kind of difference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from detdiag.evidence.finding import Evidence, Finding, FindingOutcome, Remedy, Severity
from detdiag.fingerprint.consequence import Effect
from detdiag.fingerprint.diff import FieldDiff, compared_fields, diff_fingerprints

_WORDS: Final[dict[str, str]] = {
    "version.weights-changed": "the weights differ",
    "version.tokenizer-changed": "the tokenizer differs",
    "version.template-changed": "the chat template differs",
    "version.system-prompt-changed": "the system prompt differs",
    "version.generation-config-changed": "the generation defaults differ",
    "version.quantisation-changed": "the quantisation differs",
    "version.config-changed": "the model configuration differs",
    "version.model-code-changed": "the model's own code differs",
    "version.dtype-changed": "the dtype differs",
    "version.library-changed": "library versions differ",
    "version.engine-changed": "the engine differs",
    "version.hardware-changed": "the hardware differs",
    "version.driver-changed": "the driver or its libraries differ",
    "version.parallelism-changed": "the parallel layout differs",
    "version.threads-changed": "the thread counts differ",
    "version.environment-changed": "environment variables that numeric libraries read differ",
    "version.platform-changed": "the platform differs",
    "version.reported-changed": "the server reports another model, build or place",
    "version.numerics-changed": "the log-probabilities of fixed probes differ",
    "version.answers-changed": "the answers to fixed probes differ",
    "version.prompt-length-changed": "the same prompts become another number of tokens",
    "version.settings-changed": "the servers' settings differ",
    "version.fact-changed": "facts of unknown consequence differ",
    "version.noted-changed": "differences that cannot change the output",
}

_PROOF: Final = frozenset(
    f"version.{name}-changed"
    for name in "weights tokenizer template system-prompt generation-config quantisation config "
    "model-code dtype numerics answers prompt-length".split()
)
"""Kinds for which the difference itself is the proof: other values go into the model."""

_REMEDY: Final = Remedy(
    "pin the fact that differs to one value on both sides and compare again",
    command="detdiag fingerprint A.json B.json",
    verify="detdiag fingerprint A.json B.json",
)
_ACTIONS: Final[dict[str, str]] = {
    "version.weights-changed": "deploy one checkpoint everywhere and check its weights_digest",
    "version.tokenizer-changed": "ship the tokenizer files with the weights and pin the library",
    "version.template-changed": "pin the chat template: pass it explicitly or ship one file",
    "version.library-changed": "pin the library versions in a lock file used by every replica",
    "version.hardware-changed": "route comparisons to one hardware type; other kernels round "
    "differently",
}


def fingerprint_findings(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    *,
    mechanism: bool = False,
    values: Mapping[str, Any] | None = None,
    names: tuple[str, str] = ("a", "b"),
    without_consequence: Collection[Effect] = (),
) -> list[Finding]:
    """Findings from two JSON objects of version facts (any shape).

    ``failed``: can change the output (severity by consequence). ``inconclusive``: the bytes differ
    but no probe showed a consequence, or the consequence is unknown. ``passed``: cannot change it,
    or nothing differs. ``mechanism`` says that ``b`` is the very target under test: weights,
    tokenizer, template and their kin are then proofs, and facts that may change something
    (libraries, hardware, variables) are ``inconclusive``, for a run can test them.
    ``without_consequence`` are effects that a test has excluded (equal logits: "bits").
    """
    rows = diff_fingerprints(a, b, values=values)
    count = compared_fields(a, b)
    if not rows:
        text = f"{names[0]} and {names[1]} agree in all {count} facts that both record"
        return [Finding("version", "version.fingerprint-equal", "passed", text)]
    return [
        _finding(rule, group, mechanism, names, count, without_consequence)
        for rule, group in _by_rule(rows).items()
    ]


def _by_rule(rows: Iterable[FieldDiff]) -> dict[str, list[FieldDiff]]:
    out: dict[str, list[FieldDiff]] = {}
    for row in rows:
        out.setdefault(row.rule, []).append(row)
    return out


def _finding(
    rule: str,
    rows: Sequence[FieldDiff],
    mechanism: bool,
    names: tuple[str, str],
    count: int,
    without_consequence: Collection[Effect],
) -> Finding:
    severity = rows[0].severity
    outcome = _outcome(severity)
    proof = mechanism and outcome == "failed" and rule in _PROOF and severity == "high"
    tested = ""
    if mechanism and not proof and outcome != "passed":
        if all(row.effect in without_consequence for row in rows):
            outcome, severity = "passed", "info"
            tested = "; tested: no consequence on the fixed probes"
        else:
            outcome = "inconclusive"
            tested = "; whether it changes the output was not tested"
    shown = "; ".join(row.describe() for row in rows[:3])
    more = f" (and {len(rows) - 3} more)" if len(rows) > 3 else ""
    explains = dict.fromkeys(factor for row in rows for factor in row.explains)
    return Finding(
        "version",
        rule,
        outcome,
        f"{_WORDS.get(rule, rule)} between {names[0]} and {names[1]}: {shown}{more}{tested}",
        severity=severity,
        subject=rows[0].field,
        evidence=(Evidence("facts that differ", len(rows), count, "facts that both record"),),
        remedy=_remedy(rule) if outcome == "failed" else None,
        mechanism=proof,
        proven=proof,
        explains=tuple(explains),
        data={"fingerprint_diff": [row.to_dict() for row in rows]},
    )


def _outcome(severity: Severity) -> FindingOutcome:
    if severity == "info":
        return "passed"
    return "inconclusive" if severity == "low" else "failed"


def _remedy(rule: str) -> Remedy:
    action = _ACTIONS.get(rule)
    if action is None:
        return _REMEDY
    return Remedy(action, verify=_REMEDY.verify)
