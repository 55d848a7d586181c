"""The line that worker_entry tells to type."""

from __future__ import annotations

import sys

import pytest

from worker_entry.again import again

DATA = ("--dataset", "--data-dir")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("", "--dataset digits"),
        ("--validate --epochs 8 --dataset mnist", "--epochs 8 --dataset digits"),
        ("--data-dir=/sets --verify --dataset cifar10 --seed 1", "--verify --seed 1 --dataset digits"),
    ],
)
def test_it_has_the_options_that_were_given(given: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/trees/builtin/worker_entry/__main__.py", *given.split()])
    monkeypatch.delenv("ORCHESTRATE_RUN", raising=False)
    assert again("--dataset", "digits", without=DATA) == f"python -m worker_entry {line}"
    monkeypatch.setenv("ORCHESTRATE_RUN", "r")
    assert again("--dataset", "digits", without=DATA) == f"orchestrate launch -- {line}"


def test_options_of_another_program_are_not_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/clone/worker_entry/prepare.py", "mnist", "--files", "4"])
    assert again("--dataset", "digits").endswith(" --dataset digits")
    assert "--files" not in again()
