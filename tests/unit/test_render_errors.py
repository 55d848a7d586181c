from __future__ import annotations

import io

import pytest

from orchestrator.errors import ClusterError, HostError, OrchestrateError, SeveralErrors, UsageError
from orchestrator.render import errors, fold


def refused(host: str) -> HostError:
    hint = f"ssh train@{host}, or set `identity` under [defaults] in hosts.toml"
    return HostError(host, "refused the login", kind="auth", why='no key was accepted for "train"', hint=hint)


def test_one_error_has_three_parts() -> None:
    assert errors.lines(
        UsageError("hosts.toml is empty", why="no [[host]]", hint="see hosts.example.toml")
    ) == [
        "error: hosts.toml is empty",
        "  why: no [[host]]",
        "  try: see hosts.example.toml",
    ]


def test_empty_parts_are_left_out_and_long_ones_indented() -> None:
    assert errors.lines(
        ClusterError("nothing answers", why="it printed:\n\x1b[2JWelcome\n\n  to gpu\x07\n")
    ) == [
        "error: nothing answers",
        "  why: it printed:",
        "       Welcome",
        "",
        "         to gpu␇",
    ]


def test_hosts_that_fail_alike_are_one_error() -> None:
    other = HostError("gpu-10", "refused the login", kind="auth", why="the account is locked", hint="")
    several = SeveralErrors([refused("gpu-02"), other, refused("gpu-03"), SeveralErrors([refused("gpu-04")])])
    assert errors.lines(several) == [
        "error: gpu-[02-04]: refused the login",
        '  why: no key was accepted for "train"',
        "  try: ssh train@gpu-02, or set `identity` under [defaults] in hosts.toml",
        "error: gpu-10 refused the login",
        "  why: the account is locked",
    ]


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("look at `dmesg`", "look at `dmesg`"),
        ("`ssh -v me@a1`, or set `user`", "`ssh -v me@a1`, or set `user` (likewise for the others)"),
    ],
)
def test_a_hint_for_several_hosts_is_for_all_of_them(hint: str, shown: str) -> None:
    assert errors.host_block(("a1", "a2"), "x", hint=hint)[-1] == f"  try: {shown}"
    assert errors.host_block(("a1",), "x", hint=hint)[-1] == f"  try: {hint}"


ALIKE: list[tuple[str, str, str, str, bool]] = [
    ("a", "ssh a now", "b", "ssh b now", True),
    ("gpu-1", "ssh gpu-1", "gpu-10", "ssh gpu-10", True),
    ("gpu-1", "ssh gpu-10", "gpu-10", "ssh gpu-100", False),
    ("a", "a and b", "b", "a and b", True),
    ("a", "cat", "b", "cbt", False),
    ("", "x", "b", "x", True),
]


@pytest.mark.parametrize(("one", "said", "two", "says", "same"), ALIKE)
def test_a_host_s_own_name_makes_no_difference(one: str, said: str, two: str, says: str, same: bool) -> None:
    assert (len(fold.alike([(one, (said,)), (two, (says,))])) == 1) is same


@pytest.mark.parametrize(
    ("what", "one"),
    [
        ("refused the login", "a1 refused the login"),
        ("./x could not be started", "a1: ./x could not be started"),
    ],
)
def test_a_host_is_named_as_a_person_would(what: str, one: str) -> None:
    assert errors.host_block(("a1",), what) == [f"error: {one}"]
    assert errors.host_block(("a1", "a2"), what) == [f"error: a[1-2]: {what}"]


def test_names_are_folded_with_room_between() -> None:
    assert fold.names(["gpu-02", "gpu-01", "login"]) == "gpu-[01-02], login"


def test_the_first_word_is_coloured_on_terminals_only() -> None:
    assert errors.coloured("error: x") == "\x1b[1;31merror:\x1b[0m x"
    assert errors.coloured("  why: error: x") == "  why: error: x"
    out = io.StringIO()
    errors.report(OrchestrateError("it broke"), out)
    assert out.getvalue() == "error: it broke\n"


def test_a_closed_stderr_is_no_second_error() -> None:
    out = io.StringIO()
    out.close()
    errors.report(OrchestrateError("it broke"), out)
