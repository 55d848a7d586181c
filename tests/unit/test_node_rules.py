"""The pure rules of a task on a node: when to signal which process, and the task's environment."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base.fault import NodeError
from orchestrator.node.base.paths import absolute
from orchestrator.node.task import environ
from orchestrator.node.task.supervisor import (
    KILL,
    LINGER,
    NOTHING,
    OVER,
    SETTLE,
    TERM_ALL,
    TERM_GROUP,
    Ending,
)

ALIVE, LEFT, GONE = (True, True), (False, True), (False, False)


STOP, KILL_NOW = ("stop", 30), ("kill", 0)


@pytest.mark.parametrize(
    "story",
    [
        # (time, request or live processes, action)
        [(0, ALIVE, NOTHING), (9e9, ALIVE, NOTHING), (9e9, GONE, OVER)],
        [(0, STOP, None), (0, ALIVE, TERM_GROUP), (29, ALIVE, NOTHING), (30, ALIVE, KILL), (30, ALIVE, KILL)],
        [(0, STOP, None), (0, ALIVE, TERM_GROUP), (1, LEFT, TERM_ALL), (29, LEFT, NOTHING), (30, LEFT, KILL)],
        [(0, ("stop", 3), None), (2.5, LEFT, TERM_ALL), (3, LEFT, KILL), (3, GONE, OVER)],
        [(0, ("stop", 0), None), (0, ALIVE, TERM_GROUP), (0.001, ALIVE, KILL)],
        [(0, KILL_NOW, None), (0, STOP, None), (0, ALIVE, KILL), (1, LEFT, KILL), (1, GONE, OVER)],
        [(0, STOP, None), (0, ALIVE, TERM_GROUP), (1, KILL_NOW, None), (1, ALIVE, KILL)],
        [(0, STOP, None), (1, ("stop", 2), None), (1, ALIVE, TERM_GROUP), (3, ALIVE, KILL)],
        [(0, ("stop", 2), None), (1, STOP, None), (1, ALIVE, TERM_GROUP), (2, ALIVE, KILL)],
        [(5, LEFT, NOTHING), (5 + SETTLE / 2, LEFT, NOTHING), (5 + SETTLE, GONE, OVER)],
        [
            (4, LEFT, NOTHING),
            (5, LEFT, TERM_ALL),
            (5 + LINGER - 0.1, LEFT, NOTHING),
            (5 + LINGER, LEFT, KILL),
        ],
        [(4, LEFT, NOTHING), (5, LEFT, TERM_ALL), (6, STOP, None), (6, LEFT, NOTHING), (7, LEFT, KILL)],
        [(4, LEFT, NOTHING), (4.1, STOP, None), (4.1, LEFT, TERM_ALL), (4.1 + LINGER, LEFT, KILL)],
    ],
)
def test_ending_stories(story: list[tuple[float, Any, str | None]]) -> None:
    end = Ending()
    for now, what, action in story:
        if action is None:
            want, grace = what
            end.ask(want, grace, now)
        else:
            assert end.step(now, *what) == action, now


BASE = {b"PATH": b"/usr/bin", b"HOME": b"/home/t", b"SSH_CONNECTION": b"x", b"SSH_AUTH_SOCK": b"y"}


def test_job_variables_override_the_login_but_not_our_marks() -> None:
    made = environ.build(
        BASE,
        "/opt/venv/bin/python",
        {"HOME": "/elsewhere", "PYTHONUNBUFFERED": "", "ORCHESTRATE_RUN": "lie", "Ü": "ß\n"},
        {"ORCHESTRATE_RUN": "r1"},
    )
    assert made == {
        b"PATH": b"/opt/venv/bin:/usr/bin",
        b"HOME": b"/elsewhere",
        b"LANG": b"C.UTF-8",
        b"PYTHONUNBUFFERED": b"",
        b"ORCHESTRATE_RUN": b"r1",
        "Ü".encode(): "ß\n".encode(),
    }


@pytest.mark.parametrize(
    ("login", "changed"),
    [
        ({}, {b"LANG": b"C.UTF-8"}),
        ({b"LANG": b"C"}, {b"LANG": b"C.UTF-8"}),
        ({b"LANG": b"de_DE.utf8"}, {}),
        ({b"LANG": b"en_US.UTF-8", b"LC_ALL": b"POSIX"}, {b"LC_ALL": b"C.UTF-8"}),
        ({b"LANG": b"en_US.UTF-8", b"LC_CTYPE": b"de_DE"}, {b"LC_CTYPE": b"C.UTF-8"}),
    ],
)
def test_the_locale_is_utf_8_where_needed(login: dict[bytes, bytes], changed: dict[bytes, bytes]) -> None:
    made = environ.build({b"PATH": b"/bin", **login}, None, {}, {})
    assert made == {b"PATH": b"/bin", b"PYTHONUNBUFFERED": b"1", **login, **changed}


def test_a_tilde_path_of_an_unknown_user_is_not_a_relative_path() -> None:
    with pytest.raises(NodeError, match="~no-such-user/x names a user that this machine lacks"):
        absolute("~no-such-user/x")


@pytest.mark.parametrize(
    ("of_its_own", "own", "home"),
    [
        ("pyvenv.cfg", {}, None),
        ("pyvenv.cfg", {"PYTHONHOME": "/b"}, b"/b"),
        ("conda-meta/history", {}, None),
        ("bin/x", {}, b"/a"),
    ],
)
def test_an_environment_does_not_get_the_home_of_another_python(
    tmp_path: Path, of_its_own: str, own: dict[str, str], home: bytes | None
) -> None:
    (tmp_path / of_its_own).parent.mkdir(exist_ok=True)
    (tmp_path / of_its_own).touch()
    made = environ.build({b"PYTHONHOME": b"/a"}, str(tmp_path / "bin/python"), own, {})
    assert made.get(b"PYTHONHOME") == home
