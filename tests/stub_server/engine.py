"""Generation with the causes of :class:`Behaviour` in it."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from tests.stub_server.behaviour import Behaviour
from tests.stub_server.model import EOS, Row, row, tokenize, word

GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 0.01
"""vLLM raises a temperature between the two to this one."""


@dataclass(frozen=True)
class Step:
    token: int
    row: Row


@dataclass(frozen=True)
class Reply:
    prompt: tuple[int, ...]
    cached: int
    steps: tuple[Step, ...]
    finish_reason: str

    @property
    def text(self) -> str:
        return "".join(word(s.token) for s in self.steps if s.token != EOS)


class Engine:
    """One server's state: running requests, prefix cache, draws."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.random = random.Random(f"draws {behaviour.seed}")
        self.lock = threading.Lock()
        self.running = 0
        self.most_running = 0
        self.slot: tuple[int, ...] = ()
        self.blocks: set[tuple[Any, ...]] = set()
        self.started = time.monotonic()

    def replica(self) -> int:
        with self.lock:
            return self.random.randrange(self.behaviour.replicas)

    def prompt_of(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """Token ids of a chat or a completion request."""
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            return tuple(int(i) for i in prompt)
        if prompt is not None:
            return tokenize(str(prompt))
        return tokenize(self._template(body))

    def _template(self, body: Mapping[str, Any]) -> str:
        messages = list(body.get("messages") or [])
        goes_on = body.get("continue_final_message") and messages
        tail = str(messages.pop()["content"]) if goes_on else ""
        clock = ""
        if self.behaviour.clock_in_template:
            clock = " now" + " tick" * (int((time.monotonic() - self.started) * 50) % 7)
        turns = "".join(f" <|{m['role']}|> {m['content']} <|end|>" for m in messages)
        return f"<|system|> {self.behaviour.system}{clock} <|end|>{turns} <|assistant|>{tail}"

    @contextmanager
    def _slot(self) -> Iterator[None]:
        with self.lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1

    def generate(self, body: Mapping[str, Any], replica: int) -> Reply:
        behaviour = self.behaviour
        prompt = self.prompt_of(body)
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        with self._slot():
            time.sleep(behaviour.base_s)
            with self.lock:
                cached = self._look_up(prompt, body.get("cache_salt"))
                loaded = self.running > 1 and self.random.random() < behaviour.load_share
            paths = self._path(replica, cached, False), self._path(replica, cached, loaded)
            steps = self._steps(prompt, paths, limit, body)
            time.sleep(behaviour.step_s * len(steps))
            time.sleep(behaviour.prompt_token_s * (len(prompt) - cached))
            self.slot = (*prompt, *(s.token for s in steps))
        return Reply(prompt, cached, steps, "stop" if steps[-1].token == EOS else "length")

    def _path(self, replica: int, cached: int, loaded: bool) -> str:
        parts = [self.behaviour.kernel, f"replica {replica}" if replica else ""]
        parts.append("warm" if cached and self.behaviour.warm_path else "")
        parts.append("load" if loaded else "")
        return "|".join(part for part in parts if part)

    def _look_up(self, prompt: tuple[int, ...], salt: Any) -> int:
        """Cached tokens of ``prompt``, in whole blocks and never the last token; stores it."""
        if self.behaviour.one_slot:
            shared = takewhile(
                lambda pair: pair[0] == pair[1], zip(prompt, self.slot, strict=False)
            )
            found = min(sum(1 for _ in shared), len(prompt) - 1)
            return found if 2 * found > len(prompt) else 0
        if not self.behaviour.prefix_cache:
            return 0
        size = self.behaviour.cache_block
        ends = range(size, len(prompt), size)
        found = 0
        for end in ends:
            if (salt, prompt[:end]) not in self.blocks:
                break
            found = end
        self.blocks.update((salt, prompt[:end]) for end in ends)
        return found

    def _steps(
        self, prompt: tuple[int, ...], paths: tuple[str, str], limit: int, body: Mapping[str, Any]
    ) -> tuple[Step, ...]:
        """``paths``: of short contexts, and of those from ``load_from`` tokens on."""
        behaviour = self.behaviour
        weights = f"{behaviour.weights} {behaviour.seed}"
        draws = self._draws(body.get("seed"))
        out: list[Step] = []
        prefix = prompt
        while len(out) < limit:
            path = paths[len(prefix) >= behaviour.load_from]
            found = row(weights, path, prefix, behaviour.tie_share)
            token = self._choose(found, body, draws)
            out.append(Step(token, found))
            prefix = (*prefix, token)
            if token == EOS:
                break
        return tuple(out)

    def _draws(self, seed: Any) -> random.Random:
        if seed is not None:
            return random.Random(f"request {seed}")
        with self.lock:
            return random.Random(self.random.random())

    def _choose(self, found: Row, body: Mapping[str, Any], draws: random.Random) -> int:
        behaviour = self.behaviour
        asked = body.get("temperature")
        temperature = behaviour.default_temperature if asked is None else float(asked)
        if behaviour.temperature is not None:
            temperature = behaviour.temperature
        order, values = found.order, found.logits
        narrow = body.get("top_k") == 1 or float(body.get("top_p") or 1) < 1e-4
        if temperature < GREEDY_BELOW or narrow:
            best = [i for i in order[:8] if values[i] == values[order[0]]]
            return draws.choice(best) if behaviour.ties == "random" else best[0]
        scaled = values.astype(np.float64) / max(temperature, LOWEST_TEMPERATURE)
        chances = np.exp(scaled - scaled.max())
        return draws.choices(range(len(values)), weights=list(chances))[0]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
