"""Find the engine in a command: which program starts a server, with which flags and variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from detdiag.audit.flags import Flag, read_flags
from detdiag.audit.shellwords import Word

LAUNCH_SURFACES: Final = {
    "vllm": "vllm.engine",
    "sglang": "sglang.server",
    "llamacpp": "llamacpp.server",
    "llamacpp_python": "llamacpp.python",
    "ollama": "ollama.server",
    "tgi": "tgi.launcher",
    "tensorrtllm": "tensorrtllm.engine",
    "lmdeploy": "lmdeploy.engine",
    "mlc": "mlc.server",
    "exllamav2": "exllamav2.settings",
    "hf": "hf.serve",
}
_IMAGES: Final = (
    ("vllm", re.compile(r"(?:^|/)(?:vllm-openai|vllm)(?::|@|$)")),
    ("sglang", re.compile(r"(?:^|/)sglang(?::|@|$)")),
    ("llamacpp", re.compile(r"(?:^|/)llama\.cpp(?::|@|$)")),
    ("ollama", re.compile(r"(?:^|/)ollama(?::|@|$)")),
    ("tgi", re.compile(r"(?:^|/)text-generation-inference(?::|@|$)")),
    ("tensorrtllm", re.compile(r"(?:^|/)tensorrt-llm(?:/release)?(?::|@|$)")),
    ("lmdeploy", re.compile(r"(?:^|/)lmdeploy(?::|@|$)")),
)
_TAG = re.compile(r":[^:/]*?(\d+\.\d+[\w.]*|b\d{3,6})(?:[-@]|$)")
_MODULES: Final = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "llama_cpp.server": "llamacpp_python",
    "mlc_llm": "mlc",
    "mlc_llm.serve.server": "mlc",
}
_PROGRAMS: Final = {
    "llama-server": "llamacpp",
    "llama-cli": "llamacpp",
    "text-generation-launcher": "tgi",
    "trtllm-serve": "tensorrtllm",
}
_WITH_SUBCOMMAND: Final = {
    ("vllm", "serve"): "vllm",
    ("sglang", "serve"): "sglang",
    ("ollama", "serve"): "ollama",
    ("lmdeploy", "serve"): "lmdeploy",
    ("mlc_llm", "serve"): "mlc",
    ("transformers", "serve"): "hf",
}
_ENV = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One environment variable and its line."""

    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A server start: ``words`` are the words after the program, ``end`` the offset behind the
    last of them (where a flag may be appended)."""

    engine: str
    flags: Mapping[str, Flag]
    env: Mapping[str, EnvVar] = field(default_factory=dict)
    version: str | None = None
    words: tuple[Word, ...] = ()
    line: int = 1
    end: int = 0
    start_offset: int = -1
    """Offset of the command's first word, where variables may be put in front; -1: not known."""

    @property
    def surface(self) -> str:
        """Surface name of the launch line."""
        return LAUNCH_SURFACES[self.engine]


_SHELL_COMMAND: Final = ("-c", "-lc", "-ec")


def image_engine(image: str) -> tuple[str | None, str | None]:
    """(engine, version) that a container image name stands for."""
    for engine, pattern in _IMAGES:
        if pattern.search(image.split("@")[0]):
            tag = _TAG.search(image)
            return engine, None if tag is None else tag.group(1)
    return None, None


def find_launch(words: Sequence[Word], env: Mapping[str, EnvVar] | None = None) -> Launch | None:
    """The server start in one command, or None. ``env`` holds variables exported before."""
    found = _find(words, env or {})
    if found is None or not words or words[0].end <= words[0].start:
        return found
    return replace(found, start_offset=words[0].start)


def _find(words: Sequence[Word], env: Mapping[str, EnvVar]) -> Launch | None:
    own, rest = split_env(words)
    variables = {**env, **own}
    version: str | None = None
    found = _program(rest)
    if found is None and any(_name(word) in ("docker", "podman", "nerdctl") for word in rest[:4]):
        return _container(rest, variables)
    if found is not None:
        engine, start = found
        for word in rest[:start]:
            version = version or image_engine(word.text)[1]
        variables.update(_docker_env(rest[:start]))
        return make_launch(engine, rest[start:], variables, version, rest[start - 1])
    return _nested(rest, variables)


def make_launch(
    engine: str,
    words: Sequence[Word],
    env: Mapping[str, EnvVar],
    version: str | None,
    anchor: Word | None,
) -> Launch:
    """A launch from the words after the program; ``anchor`` is the program's own word."""
    last = words[-1] if words else anchor
    first = anchor or (words[0] if words else None)
    return Launch(
        engine,
        read_flags(words, engine),
        dict(env),
        version,
        tuple(words),
        1 if first is None else first.line,
        0 if last is None else last.end,
    )


def split_env(words: Sequence[Word]) -> tuple[dict[str, EnvVar], list[Word]]:
    """Leading ``NAME=value`` words (also after ``env`` and ``export``) and the other words."""
    env: dict[str, EnvVar] = {}
    index = 0
    while index < len(words):
        text = words[index].text
        if _ENV.match(text):
            name, _, value = text.partition("=")
            env[name] = EnvVar(value, words[index].line)
        elif text not in ("env", "export", "exec", "nohup", "sudo", "set"):
            break
        index += 1
    return env, list(words[index:])


def _name(word: Word) -> str:
    return word.text.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")


def _program(words: Sequence[Word]) -> tuple[str, int] | None:
    """(engine, index of the first word after the program)."""
    for index, word in enumerate(words):
        name = _name(word)
        follower = words[index + 1].text if index + 1 < len(words) else ""
        if word.text in _MODULES and index and words[index - 1].text == "-m":
            engine = _MODULES[word.text]
            return engine, index + 1 + (word.text == "mlc_llm" and follower == "serve")
        if (name, follower) in _WITH_SUBCOMMAND:
            engine = _WITH_SUBCOMMAND[(name, follower)]
            extra = engine == "lmdeploy" and words[index + 2 : index + 3] != []
            return engine, index + 2 + extra
        if name in _PROGRAMS:
            return _PROGRAMS[name], index + 1
        if word.text.endswith("vllm/entrypoints/openai/api_server.py"):
            return "vllm", index + 1
        if name == "launch_server.py" and "sglang" in word.text:
            return "sglang", index + 1
        if name in ("test_inference.py", "chat.py") and "exllama" in word.text:
            return "exllamav2", index + 1
        if name == "server" and ("llama" in word.text or _llama_flags(words[index + 1 :])):
            return "llamacpp", index + 1
    return None


def _llama_flags(words: Sequence[Word]) -> bool:
    return any(word.text.endswith(".gguf") for word in words)


def _docker_env(words: Sequence[Word]) -> dict[str, EnvVar]:
    env: dict[str, EnvVar] = {}
    for index, word in enumerate(words):
        if word.text in ("-e", "--env") and index + 1 < len(words):
            name, equals, value = words[index + 1].text.partition("=")
        elif word.text.startswith("--env="):
            name, equals, value = word.text[len("--env=") :].partition("=")
        else:
            continue
        if equals:
            env[name] = EnvVar(value, word.line)
    return env


def _container(words: Sequence[Word], env: Mapping[str, EnvVar]) -> Launch | None:
    """``docker run ... IMAGE flags``: the image stands for the program."""
    for index, word in enumerate(words):
        before = words[index - 1].text if index else ""
        if word.text.startswith("-") or before in ("-v", "--volume", "--name", "-e", "--env"):
            continue
        engine, version = image_engine(word.text)
        if engine is not None:
            variables = {**env, **_docker_env(words[:index])}
            if any(w.text in _SHELL_COMMAND for w in words[index + 1 : index + 3]):
                inner = _nested(words[index + 1 :], variables)
                return None if inner is None else replace(inner, version=inner.version or version)
            return make_launch(engine, words[index + 1 :], variables, version, word)
    return None


def _nested(words: Sequence[Word], env: Mapping[str, EnvVar]) -> Launch | None:
    """``bash -c "vllm serve ..."``: the command is one quoted word."""
    from detdiag.audit.shellwords import parse_commands

    for index, word in enumerate(words):
        if word.text in _SHELL_COMMAND and index + 1 < len(words):
            inner = words[index + 1]
            for command in parse_commands(inner.text):
                found = find_launch([_inside(w, inner) for w in command], env)
                if found is not None:
                    return found
    return None


def _inside(word: Word, outer: Word) -> Word:
    """A word of a quoted command at its place in the file, where the quotes hide no escapes;
    an empty span elsewhere, so that nothing is edited there."""
    start, end = outer.start + 1 + word.start, outer.start + 1 + word.end
    if outer.end - outer.start != len(outer.text) + 2:
        start = end = 0
    return Word(word.text, start, end, outer.line + word.line - 1)
