"""Commands inside quotes (``bash -c``), and YAML that keeps its layout where it is not edited."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

from detdiag.audit.fix import fix_files

SERVE = "vllm serve m --max-num-seqs 64"
WANTED = ["--seed", "0", "--no-enable-prefix-caching", "--disable-cascade-attn"]


def fixed(name: str, text: str, **kwargs: object) -> str:
    return fix_files({name: text}, harden=True, **kwargs).texts[name]  # type: ignore[arg-type]


def test_flags_go_inside_the_quotes_of_docker_run() -> None:
    text = fixed("run.sh", f'docker run vllm/vllm-openai:v0.9.0 bash -c "{SERVE}"\n')
    words = shlex.split(text)
    assert words[:5] == ["docker", "run", "vllm/vllm-openai:v0.9.0", "bash", "-c"]
    assert len(words) == 6
    assert shlex.split(words[5]) == [*shlex.split(SERVE), *WANTED]


def test_a_flag_inside_the_quotes_is_replaced_alone() -> None:
    text = fixed(
        "run.sh",
        "docker run vllm/vllm-openai:v0.9.0 bash -c "
        "'vllm serve m --enable-prefix-caching --port 80'\n",
    )
    inner = shlex.split(shlex.split(text)[-1])
    assert inner[:3] == ["vllm", "serve", "m"] and "80" in inner
    assert "--no-enable-prefix-caching" in inner and "--enable-prefix-caching" not in inner


@pytest.mark.parametrize("quote", ['"', "'"])
def test_what_would_end_the_quotes_is_not_written(quote: str) -> None:
    """The value is JSON, quoted with the very quotes that hold the command."""
    inner = "vllm serve m --override-generation-config {}".format(
        "'{\"temperature\": 0.7}'" if quote == '"' else '"{temperature: 1}"'
    )
    line = f"docker run vllm/vllm-openai:v0.9.0 bash -c {quote}{inner}{quote}\n"
    text = fixed("run.sh", line)
    words = shlex.split(text)
    assert len(words) == len(shlex.split(line))


def test_escapes_in_the_quotes_leave_the_line_alone() -> None:
    line = 'docker run vllm/vllm-openai:v0.9.0 bash -c "echo \\"hi\\"; vllm serve m --port 80"\n'
    result = fix_files({"run.sh": line}, harden=True)
    assert result.texts["run.sh"] == line
    assert result.unplaced and not result.changes


def test_exec_form_of_a_dockerfile() -> None:
    docker = f'FROM vllm/vllm-openai:v0.9.0\nCMD ["bash", "-c", "{SERVE}"]\n'
    text = fixed("Dockerfile", docker)
    command = json.loads(text.splitlines()[-1].partition(" ")[2])
    assert command[:2] == ["bash", "-c"] and len(command) == 3


DEPLOYMENT = """\
kind: Deployment
spec:
    template:
      spec:
        containers:
        - name:   vllm      # two   spaces
          image: "vllm/vllm-openai:v0.9.0"
          {args}
        - {{name: other, image: busybox}}
"""


@pytest.mark.parametrize(
    "args",
    [
        f'command: ["bash", "-c"]\n          args: ["{SERVE}"]   # why',
        "args:\n            - --model=m\n            - --max-num-seqs=64   # why",
        "args: [--model, m]",
    ],
    ids=["bash", "block", "flow"],
)
def test_yaml_keeps_its_layout(args: str) -> None:
    before = DEPLOYMENT.format(args=args)
    after = fixed("deploy.yaml", before)
    container = yaml.safe_load(after)["spec"]["template"]["spec"]["containers"][0]
    words = container["args"]
    words = shlex.split(words[0]) if "bash" in args else words
    assert all(flag in words for flag in WANTED)
    kept = [line for line in before.splitlines() if "args: [" not in line]
    assert [line for line in after.splitlines() if line in kept] == kept
