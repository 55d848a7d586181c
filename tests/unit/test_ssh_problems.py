"""Every exception that connecting can raise has its own words, and none is missed by a new release."""

from __future__ import annotations

import errno
import inspect
import socket

import paramiko
import pytest

from orchestrator.errors import HostError
from orchestrator.ssh.problems import TABLE, explain
from orchestrator.ssh.resolve import Target

TARGET = Target("gpu-02", "gpu-02.example", 2222, "train")

raised = paramiko.ssh_exception
KEY = paramiko.RSAKey.generate(1024)

# What paramiko may raise -> the kind it becomes.
EXAMPLES: dict[type[BaseException], tuple[BaseException, str]] = {
    raised.SSHException: (raised.SSHException("odd"), "protocol"),
    raised.AuthenticationException: (raised.AuthenticationException("no"), "auth"),
    raised.PasswordRequiredException: (raised.PasswordRequiredException("locked"), "auth"),
    raised.BadAuthenticationType: (raised.BadAuthenticationType("no", ["password"]), "auth"),
    raised.PartialAuthentication: (raised.PartialAuthentication(["password"]), "auth"),
    raised.UnableToAuthenticate: (raised.UnableToAuthenticate("no"), "auth"),
    raised.ChannelException: (raised.ChannelException(1, "no"), "command"),
    raised.BadHostKeyException: (raised.BadHostKeyException("h", KEY, KEY), "protocol"),
    raised.IncompatiblePeer: (raised.IncompatiblePeer("no kex"), "algorithms"),
    raised.ProxyCommandFailure: (raised.ProxyCommandFailure("nc", "x"), "protocol"),
    raised.CouldNotCanonicalize: (raised.CouldNotCanonicalize("x"), "protocol"),
    raised.ConfigParseError: (raised.ConfigParseError("x"), "protocol"),
    raised.MessageOrderError: (raised.MessageOrderError("x"), "protocol"),
    raised.NoValidConnectionsError: (
        raised.NoValidConnectionsError({("10.0.0.1", 22): ConnectionRefusedError()}),
        "system",
    ),
}
# What sockets and the standard library raise.
SYSTEM: list[tuple[BaseException, str]] = [
    (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "resolve"),
    (TimeoutError("timed out"), "timeout"),
    (OSError(errno.ETIMEDOUT, "Connection timed out"), "timeout"),
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "refused"),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "lost"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), "lost"),
    (EOFError(), "lost"),
    (OSError(errno.EHOSTUNREACH, "No route to host"), "no-route"),
    (OSError(errno.ENETUNREACH, "Network is unreachable"), "no-route"),
    (OSError(errno.EMFILE, "Too many open files"), "here"),
    (ValueError("a bug"), "internal"),
]


def walk() -> list[type[BaseException]]:
    return [
        cls
        for _, cls in inspect.getmembers(raised, inspect.isclass)
        if issubclass(cls, BaseException) and cls.__module__ == raised.__name__
    ]


@pytest.mark.parametrize("cls", walk())
def test_every_exception_of_paramiko_has_its_words(cls: type[BaseException]) -> None:
    error, kind = EXAMPLES[cls]  # KeyError: a new release has a new exception
    check(explain(error, "gpu-02", TARGET), kind)


@pytest.mark.parametrize(("error", "kind"), SYSTEM, ids=[repr(case[0]) for case in SYSTEM])
def test_every_system_error_has_its_words(error: BaseException, kind: str) -> None:
    check(explain(error, "gpu-02", TARGET), kind)


def check(error: HostError, kind: str) -> None:
    assert error.kind == kind
    assert error.host == "gpu-02"
    assert "gpu-02" not in error.what
    assert error.why
    assert error.hint


def test_the_most_specific_class_comes_first() -> None:
    classes = [cls for cls, _ in TABLE]
    for number, cls in enumerate(classes):
        hidden = [later for later in classes[number + 1 :] if issubclass(later, cls)]
        assert not hidden, f"{cls.__name__} hides {hidden}"


def test_an_error_that_is_explained_already_stays() -> None:
    error = HostError("gpu-02", "has no identity file", kind="identity")
    assert explain(error, "gpu-02", TARGET) is error


def test_the_way_through_a_bastion_is_said() -> None:
    jump = Target("bastion", "b.example", 22, "train")
    through = Target("gpu-02", "10.0.0.2", 22, "train", jumps=(jump,))
    error = explain(raised.ChannelException(2, "Connection refused"), "gpu-02", through)
    assert error.kind == "refused"
    assert error.why.endswith("(through bastion)")
