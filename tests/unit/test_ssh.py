"""known_hosts as OpenSSH reads it, settings of ssh_config, and errors of connecting."""

import base64
import contextlib
import errno
import hashlib
import hmac
import os
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import asdict, replace
from paramiko import ssh_exception as raised

from orchestrator import processes
from orchestrator.model import LOCAL, Way
from orchestrator.ssh import hostkeys, openssh
from orchestrator.ssh.connect import Deadline, _tcp, explain
from orchestrator.ssh.hostkeys import Beyond, KnownHosts, Trust
from orchestrator.ssh.keys import LoginRefused
from orchestrator.ssh.link import _NO_COMMAND
from orchestrator.ssh.resolve import Target, _ask_ssh, parse_dump, resolve, split_destination, target_of
from tests.golden import matches_golden
from tests.unit.plans import host


def blob(kind: str, content: str) -> bytes:
    return len(kind).to_bytes(4, "big") + kind.encode() + content.encode()


def text(key: bytes) -> str:
    return f"{hostkeys.key_type(key)} {base64.b64encode(key).decode()}"


MINE, OTHER, RSA = blob("ssh-ed25519", "mine"), blob("ssh-ed25519", "other"), blob("ssh-rsa", "mine")
K, U, C = Trust.KNOWN, Trust.UNKNOWN, Trust.CHANGED
PLAIN, PORT = 22, 2222


def hashed(name: str) -> str:
    salt = b"12345678901234567890"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


CASES = [
    ("empty", "", PLAIN, U),
    ("the name in a list", f"gpu-00,GPU-01,10.0.0.1 {text(MINE)}", PLAIN, K),
    ("another name or port", f"gpu-02,[gpu-01]:2223,{hashed('gpu-02')} {text(MINE)}", PORT, U),
    ("hashed", f"{hashed('gpu-01')} {text(MINE)}", PLAIN, K),
    ("with the port", f"[gpu-01]:2222 {text(MINE)}", PORT, K),
    ("known without the port", f"gpu-01 {text(MINE)}", PORT, K),
    ("another key without the port", f"gpu-01 {text(OTHER)}", PORT, U),
    ("changed", f"gpu-01 {text(OTHER)}", PLAIN, C),
    ("changed, of another type", f"gpu-01 {text(RSA)}", PLAIN, C),
    ("one of several", f"gpu-01 {text(OTHER)}\ngpu-01 {text(RSA)}\ngpu-01 {text(MINE)}", PLAIN, K),
    ("bad lines", f"x\ngpu-01 ssh-rsa\ngpu-01 ssh-rsa ====\ngpu-01 {text(MINE)}", PLAIN, K),
    ("type and key disagree", f"gpu-01 ssh-rsa {base64.b64encode(MINE).decode()}", PLAIN, U),
]


def verdict(file: Path, content: str, port: int) -> tuple[Trust, str]:
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    target = Target("x", "gpu-01", port, "me", user_known_hosts=(file,))
    return hostkeys.judge(KnownHosts().lines_about(target), target.key_names[0], MINE)


@pytest.mark.parametrize(
    ("content", "port", "trust"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_host_keys_are_judged(tmp_path: Path, content: str, port: int, trust: Trust) -> None:
    assert verdict(tmp_path / "known", content, port)[0] is trust


@pytest.mark.parametrize("begins", ["@revoked *", "@cert-authority gpu-*", "gpu-??,gpu-01", "!gpu-01,x"])
def test_a_file_with_markers_or_patterns_is_left_to_openssh(tmp_path: Path, begins: str) -> None:
    with pytest.raises(Beyond, match="known:2"):
        verdict(tmp_path / "known", f"gpu-01 {text(MINE)}\n{begins} {text(OTHER)}\n", PLAIN)


def test_the_blamed_line_has_the_same_key_type(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    content = f"gpu-01 {text(RSA)}\n\ngpu-01 {text(OTHER)}\n"
    assert verdict(file, content, PLAIN) == (Trust.CHANGED, f"{file}:3")


def test_a_remembered_key_is_known(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "known_hosts"
    target = Target("x", "gpu-01", 2222, "me", user_known_hosts=(file,))
    for _ in range(2):  # also by two launches
        KnownHosts().remember(target, MINE)
    assert len(file.read_text().splitlines()) == 1
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert verdict(file, file.read_text(), PORT)[0] is Trust.KNOWN


def test_a_corrected_file_is_read_again(tmp_path: Path) -> None:
    """As when a reinstalled host returns during a run."""
    file, known = tmp_path / "known_hosts", KnownHosts()
    target = Target("x", "gpu-01", 22, "me", user_known_hosts=(file,))
    for when, key in enumerate((OTHER, MINE)):
        file.write_text(f"gpu-01 {text(key)}\n")
        os.utime(file, (when, when))
        trust, _ = hostkeys.judge(known.lines_about(target), "gpu-01", MINE)
    assert trust is Trust.KNOWN
    file.unlink()  # a home folder that is briefly unavailable
    assert known.lines_about(target)


def test_a_fifo_as_known_hosts_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert hostkeys.load(tmp_path / "fifo") == []
    KnownHosts().remember(Target("x", "x", 22, "me", user_known_hosts=(tmp_path / "fifo",)), MINE)


def test_a_destination_is_split_into_its_parts() -> None:
    assert split_destination("me@gpu-01:2222") == ("me", "gpu-01", 2222)
    assert split_destination("ssh://me@gpu-01:2222/") == ("me", "gpu-01", 2222)
    assert split_destination("::1") == (None, "::1", None)
    assert split_destination("[::1]:2222") == (None, "::1", 2222)
    assert split_destination("me@[fe80::1%eth0]") == ("me", "fe80::1%eth0", None)
    assert split_destination("me@corp@gpu-01") == ("me@corp", "gpu-01", None)


# Output of `ssh -G`, besides user, hostname, and port.
DUMPED = (
    *(f"stricthostkeychecking {value}" for value in ("true", "ask", "accept-new", "false", "off")),
    *(f"identityagent {value}" for value in ("none", "/run/mine", "$MINE")),
    "loglevel INFO",
    "identityfile ~/.ssh/id_rsa\nidentityfile ~/.ssh/id_ed25519",
    "identityfile ~/.ssh/id_rsa\nidentityfile ~/keys of mine",
    *(f"identityfile {value}" for value in ("~/.ssh/id_cluster", "none", "~/.ssh/%h")),
    *(f"userknownhostsfile {value}" for value in ("~/.ssh/a /b", "none", "/my key  s/a /b", "a b")),
    "knownhostscommand none",
    "knownhostscommand /bin/keys %H",
    "verifyhostkeydns true",
    "pubkeyauthentication false",
    "addressfamily inet6",
    "hostkeyalias lab",
    "ciphers aes128-ctr,aes256-ctr",
    "controlpath /no/such/socket",
    "forkafterauthentication yes\nstdinnull no",
)


def test_ssh_config_settings_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each line, how the target differs from one without it."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("HOME", "/home/ada")

    def target(text: str) -> dict[str, object]:
        return asdict(
            target_of(host("alias"), parse_dump(f"user train\nhostname GPU-01.Example\nport 22\n{text}"))
        )

    usual = target("")
    text = "".join(f"{name} = {value}\n" for name, value in usual.items())
    for line in DUMPED:
        changed = [f"  {name} = {value}\n" for name, value in target(line).items() if value != usual[name]]
        text += f"{line.replace(chr(10), '; ')}\n{''.join(changed)}"
    matches_golden("ssh/config.txt", text)


EDITS = (  # ssh_config (None: an included file appears), the port, and whether `ssh -G` runs each time
    ("port 1", 1, False),
    ("port 2", 2, False),
    ("include {etc}/more/*.conf\nport 3", 3, False),
    (None, 4, False),
    ("match exec true\nport 5", 5, True),
    ("include {etc}/*/a.conf\nport 6", 4, True),
    ("host *\nport 7", 7, False),
)


def test_ssh_output_is_cached_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = Mock(side_effect=processes.run)
    monkeypatch.setattr(processes, "run", asked)
    etc = tmp_path / "etc"
    (etc / "more").mkdir(parents=True)
    for step, (text, port, again) in enumerate(EDITS):
        (etc / "config" if text else etc / "more/a.conf").write_text((text or "port 4").format(etc=etc))
        for path in (etc, *etc.rglob("*")):
            os.utime(path, (step, step))
        for known in (False, True):
            asked.reset_mock()
            _ask_ssh.cache_clear()
            assert resolve(host("a", ssh_config=str(etc / "config"))).port == port
            assert asked.called == (again or not known), text


BY_HAND = {
    "ssh -F ~/c -i '/a b' me@gpu date": {"user": "me", "ssh_config": "~/c", "identity": "/a b"},
    "ssh -p 22 gpu date": {"port": 22},
    "date": {"ssh": LOCAL},
    "srun --overlap --jobid=7 -w gpu date": {"via": Way.SRUN, "job": "7"},
    "docker exec -i gpu sh -c date": {"via": ("docker", "exec", "-i", "{host}", "sh", "-c")},
}


@pytest.mark.parametrize(("line", "entry"), BY_HAND.items())
def test_the_command_for_a_user_reaches_the_host(line: str, entry: dict[str, Any]) -> None:
    assert replace(host("gpu"), **entry).by_hand("date") == line
    assert replace(host("gpu"), **entry).by_hand() == line.removesuffix(" date" * line.startswith("ssh"))


TARGET = Target("gpu-02", "gpu-02.example", 2222, "train", by_hand="ssh -p 2222 train@gpu-02")

THROUGH = replace(TARGET, jump=Target("bastion", "b.example", 22, "train"))
ERRORS: list[tuple[BaseException, Target]] = [
    (raised.SSHException("odd"), TARGET),
    (raised.BadAuthenticationType("no", ["password"]), TARGET),
    (raised.ChannelException(1, "no"), TARGET),
    (raised.ChannelException(1, "no"), THROUGH),
    (_NO_COMMAND, THROUGH),
    (raised.ChannelException(2, "Connection refused"), THROUGH),
    (raised.IncompatiblePeer("no kex"), TARGET),
    (raised.NoValidConnectionsError({("10.0.0.1", 22): ConnectionRefusedError()}), TARGET),
    (LoginRefused([], [], ""), TARGET),
    (LoginRefused(["id_rsa"], [], ""), TARGET),
    (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), TARGET),
    (TimeoutError("timed out"), TARGET),
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), TARGET),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), TARGET),
    (EOFError(), TARGET),
    (OSError(errno.EHOSTUNREACH, "No route to host"), TARGET),
    (OSError(errno.ENETUNREACH, "Network is unreachable"), TARGET),
    (OSError(errno.EMFILE, "Too many open files"), TARGET),
    (ValueError("a bug"), TARGET),
]
OF_OPENSSH = (
    b"Your account has expired.\nConnection closed by 10.0.0.1 port 22\n",
    b"exec request failed on channel 0\n",
)


def test_every_error_has_a_message() -> None:
    text = ""
    for error, target in ERRORS:
        told = explain(error, "gpu-02", target)
        assert told.host == "gpu-02"
        assert "gpu-02" not in told.what
        text += f"{error!r}\n  {told.kind}: {told.what}\n  why: {told.why}\n  try: {told.hint}\n"
    for printed in OF_OPENSSH:
        problem = openssh.error(host("gpu"), 255, printed)
        assert problem is not None
        text += f"{printed!r}\n  {problem.kind}: {problem.what}\n  why: {problem.why}\n"
        text += f"  try: {problem.hint}\n"
    matches_golden("ssh/errors.txt", text)


def test_a_silent_address_is_not_taken_for_a_lossy_link() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as full:
        for _ in range(4):  # the kernel now ignores further connections, like a machine that is off
            peer = full.enter_context(socket.socket())
            peer.setblocking(False)
            peer.connect_ex(server.getsockname())
        port = server.getsockname()[1]
        target = Target("gpu-02", "127.0.0.1", port, "train")
        with pytest.raises(TimeoutError) as caught:
            _tcp(target, Deadline(0.2))
    error = explain(caught.value, "gpu-02", target)
    assert (error.kind, "MTU" in error.hint, "the machine is on" in error.hint) == ("timeout", False, True)
    assert "MTU" in explain(TimeoutError("timed out"), "gpu-02", target).hint
