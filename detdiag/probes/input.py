"""Is the same question the same token ids, every time and from every client?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Evidence, Finding, Locus
from detdiag.evidence.record import Event
from detdiag.fingerprint.template import CLOCKS, render
from detdiag.inputs.bytes_diff import diff_texts
from detdiag.inputs.compare import read_bytes
from detdiag.inputs.findings import describe, failed_finding
from detdiag.inputs.tokens_diff import diff_tokens, doubled_bos
from detdiag.inputs.volatile import compare_renders
from detdiag.layers import Layer
from detdiag.probes.interface import ProbeContext
from detdiag.targets.prompts import Prompt

_PAUSE_S: Final = 1.05
"""Longer than a second, so that a clock shown to the second moves between two renders."""


class InputProbe:
    """Renders and tokenises every prompt twice, looks for a doubled BOS and clocks in the
    template, and runs the user's pair of requests where one is given."""

    layer: ClassVar[Layer] = "input"

    def run(self, context: ProbeContext) -> Iterator[Event]:
        tokenizer = context.target.tokenizer
        yield from _repeats(context)
        yield from _bos(context)
        yield from _clock_in_template(tokenizer, context.target.prompts)
        pair = context.scratch.get("requests") or context.scratch.get("request_pair")
        if pair is not None:
            from detdiag.probes.request_pair import pair_events

            yield from pair_events(context, *load_pair(pair))
        yield ProbeStatus("input", "done")


def load_pair(pair: Any) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    """Two (name, bytes) from two paths, or from two request bodies given as objects."""
    import json

    items = []
    for index, item in enumerate(pair):
        if isinstance(item, (str, Path)):
            items.append((Path(item).name, read_bytes(Path(item))))
        elif isinstance(item, Mapping):
            body = json.dumps(item, ensure_ascii=False).encode("utf-8", "surrogatepass")
            items.append((f"request {'ab'[index]}", body))
        else:
            raise DetdiagError("a pair of requests: expected two paths or two objects")
    return items[0], items[1]


def rendered(tokenizer: Any, prompt: Prompt) -> str | None:
    """What the tokenizer is given: the text, or the chat template's render of the messages."""
    if prompt.messages is None:
        return prompt.text
    if not getattr(tokenizer, "chat_template", None):
        return None
    return str(
        tokenizer.apply_chat_template(
            [dict(m) for m in prompt.messages], add_generation_prompt=True, tokenize=False
        )
    )


def _repeats(context: ProbeContext) -> Iterator[Event]:
    """Every prompt rendered and encoded twice, the second time more than a second later."""
    target = context.target
    first = [(rendered(target.tokenizer, p), target.encode(p)) for p in target.prompts]
    if any(p.messages is not None for p in target.prompts) and _may_read_clock(target.tokenizer):
        time.sleep(_PAUSE_S)
    second = [(rendered(target.tokenizer, p), target.encode(p)) for p in target.prompts]
    moved = [i for i, (one, two) in enumerate(zip(first, second, strict=True)) if one != two]
    count = len(target.prompts)
    if not moved:
        yield Finding(
            "input",
            "input.bytes-differ",
            "passed",
            f"{count} of {count} prompts become the same bytes and token ids when rendered again",
            evidence=(Evidence("prompts that differ when rendered again", 0, count, "prompts"),),
        )
        return
    index = moved[0]
    yield _unstable(target.prompts[index], first[index], second[index], len(moved), count)


def _may_read_clock(tokenizer: Any) -> bool:
    """Only such a template is worth the pause; custom code may read a clock out of sight."""
    template = getattr(tokenizer, "chat_template", None)
    return not isinstance(template, str) or "now" in template or "date" in template


def _unstable(
    prompt: Prompt,
    one: tuple[str | None, tuple[int, ...]],
    two: tuple[str | None, tuple[int, ...]],
    moved: int,
    count: int,
) -> Finding:
    texts = [one[0] or "", two[0] or ""]
    ids = diff_tokens(one[1], two[1])
    evidence = Evidence("prompts that differ when rendered again", moved, count, "prompts")
    common: dict[str, Any] = {
        "evidence": (evidence,),
        "locus": Locus(query=prompt.id, token=ids.first_difference),
        "mechanism": True,
        "proven": True,
        "explains": ("prompt_digest", "template_digest", "prompt_token_ids", "repeat"),
    }
    if texts[0] == texts[1]:
        return failed_finding(
            "input.token-ids-differ",
            f"{moved} of {count} prompts become other token ids when encoded again, at equal text",
            data={"token_diff": ids.to_dict()},
            **common,
        )
    diff = diff_texts(*texts)
    kinds = sorted({found.kind for found in compare_renders(texts)})
    return failed_finding(
        "input.volatile-content",
        f"{moved} of {count} prompts render to other bytes a moment later "
        f"({', '.join(kinds)}): {describe(diff)}",
        data={"input_diff": diff.to_dict("first render", "second render")},
        **common,
    )


def _bos(context: ProbeContext) -> Iterator[Event]:
    """A BOS that is there twice, and the call that would put it there."""
    target = context.target
    bos = getattr(target.tokenizer, "bos_token_id", None)
    if bos is None:
        return
    doubled = [p.id for p in target.prompts if doubled_bos(target.encode(p), bos)]
    if doubled:
        yield failed_finding(
            "input.doubled-bos",
            f"{len(doubled)} of {len(target.prompts)} prompts start with the BOS id {bos} twice",
            evidence=(Evidence("prompts with two BOS", len(doubled), len(target.prompts)),),
            locus=Locus(query=doubled[0], token=1),
            explains=("add_bos", "prompt_token_ids"),
        )
        return
    chats = [p for p in target.prompts if p.messages is not None]
    if any(_default_call_doubles(target.tokenizer, p, bos) for p in chats):
        yield Finding(
            "input",
            "input.doubled-bos",
            "passed",
            "no prompt has two BOS here; a client that tokenises the rendered chat with the "
            "default call (add_special_tokens=True) would send one more",
        )


def _default_call_doubles(tokenizer: Any, prompt: Prompt, bos: int) -> bool:
    text = rendered(tokenizer, prompt)
    return text is not None and doubled_bos(tokenizer(text)["input_ids"], bos)


def _clock_in_template(tokenizer: Any, prompts: Sequence[Prompt]) -> Iterator[Event]:
    """A template that renders another text on another day, found with two fixed clocks."""
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        return
    special = {
        key: value
        for key, value in getattr(tokenizer, "special_tokens_map", {}).items()
        if isinstance(value, str)
    }
    texts = [render(template, special, clock=clock) for clock in CLOCKS]
    if texts[0] == texts[1] or not all(isinstance(text, str) for text in texts):
        return
    used = any(p.messages is not None for p in prompts)
    shown = describe(diff_texts(texts[0], texts[1]))
    yield Finding(
        "input",
        "input.template-reads-clock",
        "inconclusive",
        f"the chat template prints the date or time: the same messages are other bytes on another "
        f"day ({shown})" + ("" if used else "; no prompt of this run is a chat"),
        severity="medium" if used else "low",
        explains=("template_digest", "prompt_digest"),
    )
