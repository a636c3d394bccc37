"""Settings of the gate: what is read, what is refused with its line, and where values come from."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from detdiag.errors import DetdiagError
from detdiag.gate.options import DEFAULTS, OPTIONS, PROFILES
from detdiag.gate.settings import FileSettings, find_file, read_file, resolve
from detdiag.gate.show import settings_json, settings_lines
from detdiag.gate.toml_lines import key_lines

GNARLY = '''
# a comment with = and [brackets]
profile = "pr" # trailing "comment"
paths = [
  "a]b",  # ] not the end
  'c"d',
  """e
  profile = "not a key"
""",
]
"fail-on" = 'text'
bound = 1e-2

[rules]
"config.sampling-still-on" = "warn"
batch = "off"
version."weights-changed" = "error"

[ rules . 'moe' ]   # spaces and quotes in a header
"router-tie" = "off"

[[waiver]]
rule = "batch.*"
reason = \'\'\'
[not.a.table]
owner = "nobody"\'\'\'
owner = """a \\"""quoted\\""" owner"""
expires = 2030-01-02

[[waiver]]
layer = "moe"
inline = {a = 1, b = {c = "}", d = [1, {e = 2}]}}
'''


def _paths(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    out = [at] if at else []
    if isinstance(value, dict):
        for key, item in value.items():
            out += _paths(item, (*at, key))
    elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        for index, item in enumerate(value):
            out += _paths(item, (*at, index))
    return out


def test_every_key_is_found_on_the_line_that_spells_it() -> None:
    lines, text = key_lines(GNARLY), GNARLY.split("\n")
    for path in _paths(tomllib.loads(GNARLY)):
        if path[-1] == "e" or isinstance(path[-1], int):
            continue
        assert str(path[-1]) in text[lines[path] - 1], path
    assert lines["waiver", 0] == text.index("[[waiver]]") + 1
    assert lines["waiver", 1, "layer"] == text.index('layer = "moe"') + 1
    assert lines["rules", "moe", "router-tie"] == text.index('"router-tie" = "off"') + 1


def write(tmp_path: Path, text: str, name: str = "detdiag.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('\nprofil = "pr"\n', 2, "unknown key 'profil'; did you mean 'profile'?"),
        ('fail_on = "text"\n', 1, "did you mean 'fail-on'?"),
        ("zzz = 1\n", 1, "known keys: profile"),
        ('profile = "pr"\nfail-on = "tokens"\n', 2, "did you mean 'token'?"),
        ("\n\nbound = 5\n", 3, "bound: expected a number between 0 and 1, found 5"),
        ("bound = true\n", 1, "between 0 and 1"),
        ('runs = "20"\n', 1, "runs: expected a whole number"),
        ('budget = "soon"\n', 1, "expected a time"),
        ('paths = "x"\n', 1, "expected a list of texts"),
        ('require = ["bach"]\n', 1, "did you mean 'batch'?"),
        ("model = 3\n", 1, "model: expected text, found 3"),
        ('rules = "off"\n', 1, "expected a table"),
        ('[rules]\n"batch.*" = "warn"\nbatch = "of"\n', 3, "did you mean 'off'?"),
        ('[rules]\n"config.greddy" = "off"\n', 2, "did you mean 'config.greedy'?"),
        ('[rules]\n"vllm-9*" = "off"\n', 2, "matches no rule"),
        ('[waiver]\nrule = "x"\n', 1, "[[waiver]]"),
        ('a = \n', 1, "not valid TOML"),
        ('x = "\n', 1, "not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DetdiagError) as caught:
        read_file(path)
    assert caught.value.line == line
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


WAIVER = '[[waiver]]\nrule = "batch.*"\nreason = "r"\nowner = "o"\nexpires = 2030-01-02\n'


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('reason = "r"\n', "", 1, "needs 'reason'"),
        ('owner = "o"\n', "", 1, "needs 'owner'"),
        ("expires = 2030-01-02\n", "", 1, "needs 'expires'"),
        ('reason = "r"', 'reason = ""', 1, "needs 'reason'"),
        ('owner = "o"', 'owner = "  "', 4, "owner: expected text"),
        ('rule = "batch.*"\n', "", 1, "names a 'rule' or a 'layer'"),
        ("expires = 2030-01-02", 'expires = "soon"', 5, "expected a date"),
        ('owner = "o"', 'ower = "o"', 4, "did you mean 'owner'?"),
        ('rule = "batch.*"', 'rule = "btch.*"', 2, "matches no rule"),
        ('rule = "batch.*"', 'layer = "bach"', 2, "did you mean 'batch'?"),
    ],
)
def test_a_waiver_needs_reason_owner_and_expiry(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    assert read_file(write(tmp_path, WAIVER)).waivers[0].owner == "o"
    with pytest.raises(DetdiagError) as caught:
        read_file(write(tmp_path, WAIVER.replace(old, new)))
    assert caught.value.line == line and message in str(caught.value)


def test_command_line_over_file_over_profile(tmp_path: Path) -> None:
    path = write(tmp_path, 'profile = "release"\n\nfail-on = "token"\nbatch-sizes = "1,2"\n')
    settings = resolve({"fail-on": "text", "model": "m"}, read_file(path))
    assert settings.values["fail-on"].origin == "--fail-on"
    assert (settings.get("fail-on"), settings.get("profile")) == ("text", "release")
    assert settings.origin("profile") == "detdiag.toml:1"
    assert settings.origin("batch-sizes") == "detdiag.toml:4"
    assert settings.origin("bound") == "default of release"
    lines = "\n".join(settings_lines(settings))
    for key in settings.values:
        assert f"\n{key} = " in f"\n{lines}"
    assert 'fail-on = "text"' in lines and "# detdiag.toml:4" in lines
    assert '"origin": "detdiag.toml:1"' in settings_json(settings)
    shown = tomllib.loads(lines)  # what is printed is itself a settings file
    assert shown["bound"] == settings.get("bound") and shown["model"] == "m"


def test_a_target_on_the_command_line_replaces_the_one_of_the_file(tmp_path: Path) -> None:
    file = read_file(write(tmp_path, 'model = "m"\n'))
    assert resolve({"endpoint": "http://x"}, file).get("model") is None
    assert resolve({}, file, demo=True).get("model") is None
    assert resolve({}, file).get("profile") == "pr"
    assert resolve({"paths": ["x"]}, FileSettings()).get("profile") == "quick"


@pytest.mark.parametrize("bound", [0.15, 0.05, 0.01])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_runs_follow_from_the_bound(bound: float, confidence: float) -> None:
    given = {"profile": "pr", "bound": bound, "confidence": confidence}
    runs = resolve(given, FileSettings()).get("runs")
    assert (1 - bound) ** runs <= 1 - confidence  # all equal is this unlikely at the rate `bound`
    assert runs == 20 or (1 - bound) ** (runs - 1) > 1 - confidence


def test_runs_that_cannot_reach_the_bound_are_refused(tmp_path: Path) -> None:
    needed = math.ceil(math.log(0.05) / math.log(0.95))
    with pytest.raises(DetdiagError, match=f"{needed} equal runs are needed"):
        resolve({"profile": "release", "runs": needed - 1}, FileSettings())
    assert resolve({"profile": "release", "runs": needed}, FileSettings()).get("runs") == needed
    path = write(tmp_path, 'profile = "release"\nruns = 20\n')
    with pytest.raises(DetdiagError) as caught:
        resolve({}, read_file(path))
    assert caught.value.line == 2 and caught.value.path == path


def test_pyproject_is_read_where_there_is_no_detdiag_toml(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    project = write(tmp_path, '[project]\nname = "x"\n[tool.detdiag]\nprofile = "pr"\nrun = 3\n',
                    "pyproject.toml")  # fmt: skip
    assert find_file(inner) == project
    with pytest.raises(DetdiagError, match=r"pyproject.toml:5: unknown key 'run'.*'runs'"):
        read_file(project)
    write(tmp_path, "[tool.other]\n", "pyproject.toml")
    assert find_file(inner) is None
    near = write(inner, 'profile = "pr"\n')
    assert find_file(inner) == near


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    text = 'model = "models"\nbaseline = "ok.json"\npaths = ["serve"]\n'
    settings = resolve({}, read_file(write(tmp_path, text)))
    assert [settings.get(k) for k in ("model", "baseline")] == ["models", "ok.json"]
    assert settings.get("paths") == ("serve",)
    monkeypatch.chdir(tmp_path / "models")
    settings = resolve({}, read_file(tmp_path / "detdiag.toml"))
    assert [settings.get(k) for k in ("model", "baseline")] == [".", "../ok.json"]
    hub = write(tmp_path, 'model = "org/name"\n')
    assert resolve({}, read_file(hub)).get("model") == "org/name"


def test_pyproject_rules_and_waivers_have_their_lines(tmp_path: Path) -> None:
    text = (
        "[tool.detdiag]\nprofile = 'pr'\n[tool.detdiag.rules]\n'batch.*' = 'warn'\n"
        "[[tool.detdiag.waiver]]\nlayer = 'moe'\nreason = 'r'\nowner = 'o'\n"
        "expires = 2030-01-02\n"
    )
    found = read_file(write(tmp_path, text, "pyproject.toml"))
    assert found.rules.origins == {"batch.*": "pyproject.toml:4"}
    assert found.waivers[0].origin == "pyproject.toml:5"
    with pytest.raises(DetdiagError, match="pyproject.toml:8: owner: expected text"):
        read_file(write(tmp_path, text.replace("'o'", "7"), "pyproject.toml"))


def test_hostile_text_is_shown_as_escapes(tmp_path: Path) -> None:
    text = WAIVER.replace('"r"', r'"\u001b[31mred\u0007\u202e </script> {{7*7}}"')
    settings = resolve({"paths": ["a\x1b[2J"]}, read_file(write(tmp_path, text)))
    shown = "\n".join(settings_lines(settings)) + settings_json(settings)
    assert "\x1b" not in shown and "\u202e" not in shown and "\\u001b" in shown
    with pytest.raises(DetdiagError) as caught:
        read_file(write(tmp_path, '"pro\\u001b[31mfile" = "pr"\n'))
    assert "\x1b" not in str(caught.value)
    for broken in (b"\xff\xfe", b"profile = \x00", b"a = 1\n\xe9"):
        path = tmp_path / "detdiag.toml"
        path.write_bytes(broken)
        with pytest.raises(DetdiagError):
            read_file(path)


def test_every_profile_names_known_settings_only() -> None:
    keys = {option.key for option in OPTIONS}
    assert set(DEFAULTS) == set(PROFILES)
    assert all(set(values) <= keys for values in DEFAULTS.values())
