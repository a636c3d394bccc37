"""Other people's requests, as bursts need them: prompts of varied length, never sent before."""

from __future__ import annotations

import random
from typing import Final

from detdiag.targets.prompts import Prompt

_WORDS: Final = (
    "harbour ledger copper willow orbit pencil granite saddle lantern cinder meadow turbine "
    "velvet anchor biscuit cobalt drizzle ember falcon gravel hollow island jigsaw kettle"
).split()
WORD_COUNTS: Final = (6, 24, 60, 140, 320)
"""Words of a filler: launches of a burst then cross 64 to 512 tokens and more."""
_TASKS: Final = (
    "Write one sentence about these words:",
    "Sort these words by length:",
    "Tell a short story that holds all of these words:",
    "Which of these words is a colour?",
)


def filler(rng: random.Random, number: int, longest: int = WORD_COUNTS[-1]) -> Prompt:
    """A prompt that is new in the process and from run to run."""
    count = min(longest, WORD_COUNTS[number % len(WORD_COUNTS)])
    words = " ".join(rng.choice(_WORDS) for _ in range(count))
    return Prompt(f"filler-{number}", f"{rng.getrandbits(32):08x} {rng.choice(_TASKS)} {words}")
