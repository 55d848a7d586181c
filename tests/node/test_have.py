"""Whether a machine has a job's program: what the task will find, by the same PATH, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.node.lab import Lab


def has(lab: Lab, program: str, *, python: str = sys.executable, path: str | None = None) -> bool:
    env = {} if path is None else {"PATH": path}
    agent = lab.agent(env=env)
    answer = agent.request(
        "work_make",
        workdir=str(lab.workdir),
        run=lab.run,
        digest="aa",
        needs={"program": program, "python": python, "setup": None, "packages": [], "paths": []},
        makes=False,
    )
    assert (answer["missing"], answer["made"]) == ([], False)
    return bool(answer["had"]["program"])


@pytest.mark.parametrize(
    ("name", "mode", "there"),
    [("trainer", 0o755, True), ("trainer", 0o644, False), ("another", 0o755, False)],
)
def test_a_program_is_an_executable_file_on_path(lab: Lab, name: str, mode: int, *, there: bool) -> None:
    folder = lab.folder / "a folder" / "bin"
    folder.mkdir(parents=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(mode)
    assert has(lab, "trainer", path=f"/no/such:{folder}") is there
    assert has(lab, str(folder / "trainer")) is there


def test_neither_a_folder_nor_a_word_of_the_shell_is_a_program(lab: Lab) -> None:
    (lab.folder / "trainer").mkdir()
    assert not has(lab, "trainer", path=str(lab.folder))
    assert not has(lab, str(lab.folder))
    assert not has(lab, "export")
    assert has(lab, "true")  # a word of the shell, and a program


def test_what_lies_beside_the_python_is_found(lab: Lab) -> None:
    folder = lab.folder / "venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "trainer"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    assert has(lab, "trainer", python=str(folder / "python"))
    assert not has(lab, "trainer", python=str(Path(sys.executable)))
