"""The text the demo models were trained on: a seeded grammar about one small harbour town.

Everything here is written for this project and falls under its licence, so the text, the models
trained on it and the prompts may be redistributed. Facts about the town are fixed (a model can
learn them); what happens on a given day is drawn, so a greedy continuation passes through
places where several words are almost equally likely - the places where rounding can flip a token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple


class Person(NamedTuple):
    """A fixed fact sheet: who someone is, where they work and what they like."""

    name: str
    job: str
    place: str
    pet: str
    food: str
    colour: str
    friend: str


PEOPLE: Final = (
    Person("mira", "baker", "bakery", "a grey cat", "warm bread", "yellow", "tom"),
    Person("tom", "lock keeper", "canal", "an old dog", "bean soup", "green", "mira"),
    Person("anna", "teacher", "school", "a small bird", "apple cake", "blue", "lena"),
    Person("peter", "sailor", "ferry", "a brown dog", "fried fish", "white", "oscar"),
    Person("lena", "doctor", "clinic", "a white rabbit", "rice and peas", "red", "anna"),
    Person("oscar", "fisherman", "harbour", "a black cat", "mussels", "grey", "peter"),
    Person("nina", "librarian", "library", "a slow turtle", "honey toast", "purple", "felix"),
    Person("felix", "clock maker", "workshop", "a young owl", "onion pie", "brown", "nina"),
    Person("clara", "gardener", "park", "a fat hen", "pear jam", "orange", "hugo"),
    Person(
        "hugo", "lighthouse keeper", "lighthouse", "a loud parrot", "potatoes", "black", "clara"
    ),
)
DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
PARTS: Final = ("morning", "afternoon", "evening")
NUMBERS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve "
    "thirteen fourteen fifteen sixteen seventeen eighteen"
).split()
WEATHER: Final = (
    ("it rained hard", "the streets were wet and empty"),
    ("the sun was shining", "the children played outside until dark"),
    ("thick fog came in from the sea", "the ferry stayed in the harbour"),
    ("a strong wind blew from the north", "the small boats did not go out"),
    ("it snowed all day", "the park was white and quiet"),
    ("the sky was clear and cold", "you could see the lighthouse from the hill"),
)
FERRY: Final = (
    "the ferry left at {hour} and came back before dark",
    "the ferry was late because of the tide",
    "the ferry carried {count} passengers and a cart of apples",
    "the ferry waited for the mail and left at {hour}",
)
GOODS: Final = ("apples", "pears", "candles", "fresh fish", "honey", "wool", "lamp oil", "blankets")
FINDS: Final = ("a silver key", "an old letter", "a wooden box", "a blue bottle", "a small map")
SPOTS: Final = ("under the bridge", "on the beach", "behind the school", "near the old mill")
ENDINGS: Final = (
    "then everyone went home",
    "after that the town was quiet again",
    "in the end nobody was late for dinner",
    "it was a good day",
)


def _fact(rng: random.Random, who: Person) -> str:
    article = "an" if who.job[0] in "aeiou" else "a"
    return rng.choice(
        (
            f"{who.name} is {article} {who.job} and works at the {who.place}.",
            f"{who.name} has {who.pet} and likes {who.food}.",
            f"the favourite colour of {who.name} is {who.colour}.",
            f"{who.name} and {who.friend} are good friends.",
        )
    )


def _facts(rng: random.Random) -> str:
    who = rng.choice(PEOPLE)
    friend = next(p for p in PEOPLE if p.name == who.friend)
    lines = dict.fromkeys(_fact(rng, who) for _ in range(4))
    return " ".join([*lines, _fact(rng, friend)])


def _day(rng: random.Random) -> str:
    who, other = rng.sample(PEOPLE, 2)
    weather, result = rng.choice(WEATHER)
    ferry = rng.choice(FERRY).format(
        hour=rng.choice(NUMBERS[6:12]), count=rng.choice(NUMBERS[3:13])
    )
    sentences = [
        f"on {rng.choice(DAYS)} {rng.choice(PARTS)} {weather}, so {result}.",
        f"{ferry}.",
        f"{who.name} went to the market and bought {rng.choice(GOODS)} for {other.name}.",
        f"{other.name} found {rng.choice(FINDS)} {rng.choice(SPOTS)} and showed it to {who.name}.",
        f"{who.name} said that {who.food} would be good for dinner.",
    ]
    kept = [sentences[0], *sorted(rng.sample(sentences[1:], 3), key=sentences.index)]
    return " ".join([*kept, f"{rng.choice(ENDINGS)}."])


def _count(rng: random.Random) -> str:
    parts = []
    for _ in range(4):
        a, b = rng.randrange(10), rng.randrange(9)
        parts.append(f"{NUMBERS[a]} plus {NUMBERS[b]} is {NUMBERS[a + b]}.")
    return " ".join(parts)


def _question(rng: random.Random) -> tuple[str, str]:
    who = rng.choice(PEOPLE)
    a, b = rng.randrange(10), rng.randrange(9)
    day = rng.randrange(7)
    today, tomorrow = DAYS[day], DAYS[(day + 1) % 7]
    return rng.choice(
        (
            (f"where does {who.name} work?", f"{who.name} works at the {who.place}."),
            (f"what does {who.name} like to eat?", f"{who.name} likes {who.food}."),
            (f"who is the friend of {who.name}?", f"{who.friend} is a good friend of {who.name}."),
            (f"which animal does {who.name} have?", f"{who.name} has {who.pet}."),
            (
                f"who works at the {who.place}?",
                f"{who.name} the {who.job} works at the {who.place}.",
            ),
            (f"what is {NUMBERS[a]} plus {NUMBERS[b]}?", f"the answer is {NUMBERS[a + b]}."),
            (
                f"which day comes after {today}?",
                f"{tomorrow} comes after {today}.",
            ),
            ("tell me about a day in the town.", _day(rng)),
        )
    )


def chat(question: str, answer: str) -> str:
    """One exchange as the chat template renders it (without the leading begin token)."""
    return f"<|user|>\n{question}<|end|>\n<|assistant|>\n{answer}<|end|>\n"


def _chat(rng: random.Random) -> str:
    return chat(*_question(rng))


_KINDS: Final[tuple[Callable[[random.Random], str], ...]] = (
    _facts,
    _day,
    _day,
    _count,
    _chat,
    _chat,
)


def documents(seed: int) -> Iterator[str]:
    """Endless documents; plain ones end in ``<|end|>`` and a newline as chats do."""
    rng = random.Random(seed)
    while True:
        text = rng.choice(_KINDS)(rng)
        yield text if text.endswith("\n") else f"{text}<|end|>\n"
