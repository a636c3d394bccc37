"""The sample reports in the repository are what the code renders today."""

from __future__ import annotations

import re

import pytest

from tests.report.sample_pages import CASES, FOLDER, WALKS, comparable, samples

AGAIN = "run python -m tests.report.sample_pages if the change is meant"
NAMES = [f"{name}.{s}" for group in (CASES, WALKS) for name, found in group.items() for s in found]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return samples()


@pytest.mark.parametrize("name", NAMES)
def test_the_sample_renders_to_the_same_bytes(made: dict[str, str], name: str) -> None:
    stored = (FOLDER / name).read_bytes().decode("utf-8")
    assert comparable(stored) == comparable(made[name]), AGAIN


def test_no_machine_of_ours_is_in_a_sample(made: dict[str, str]) -> None:
    for name, text in made.items():
        plain = comparable(text)
        assert not re.search(r"(?<![\w.$])/(?:home|root|tmp|opt|work|Users)/", plain), name


def test_plain_samples_stay_under_the_cap(made: dict[str, str]) -> None:
    for name, text in made.items():
        if name.endswith(".html") and name.split(".")[0] in CASES:
            assert len(text.encode()) <= 300_000
