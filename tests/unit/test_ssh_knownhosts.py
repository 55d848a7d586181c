"""known_hosts as OpenSSH reads it."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from orchestrator.ssh import knownhosts
from orchestrator.ssh.hostkeys import HostKeyRefused, KnownHosts, Policy
from orchestrator.ssh.knownhosts import KeyVerdict, Trust
from orchestrator.ssh.target import Target


def blob(kind: str, content: str) -> bytes:
    return len(kind).to_bytes(4, "big") + kind.encode() + content.encode()


def text(key: bytes) -> str:
    return f"{knownhosts.key_type(key)} {base64.b64encode(key).decode()}"


MINE, OTHER, RSA = blob("ssh-ed25519", "mine"), blob("ssh-ed25519", "other"), blob("ssh-rsa", "mine")
K, U, C, R = Trust.KNOWN, Trust.UNKNOWN, Trust.CHANGED, Trust.REVOKED
PLAIN, PORT = ("gpu-01",), ("[gpu-01]:2222", "gpu-01")


def hashed(name: str) -> str:
    return knownhosts.line_for(name, MINE, hashed=True).split()[0]


CASES = [
    ("empty", "", PLAIN, U),
    ("the name", f"gpu-01 {text(MINE)}", PLAIN, K),
    ("another name", f"gpu-02 {text(MINE)}", PLAIN, U),
    ("in a list", f"gpu-00,gpu-01,10.0.0.1 {text(MINE)}", PLAIN, K),
    ("upper case in the file", f"GPU-01 {text(MINE)}", PLAIN, K),
    ("wildcards", f"gpu-?? {text(MINE)}", PLAIN, K),
    ("star", f"* {text(MINE)}", PLAIN, K),
    ("negated", f"gpu-*,!gpu-01 {text(MINE)}", PLAIN, U),
    ("negated, elsewhere positive", f"!gpu-01,gpu-* {text(MINE)}\ngpu-01 {text(MINE)}", PLAIN, K),
    ("hashed", f"{hashed('gpu-01')} {text(MINE)}", PLAIN, K),
    ("hashed, another name", f"{hashed('gpu-02')} {text(MINE)}", PLAIN, U),
    ("hashed, broken", f"|1|!!|?? {text(MINE)}", PLAIN, U),
    ("with the port", f"[gpu-01]:2222 {text(MINE)}", PORT, K),
    ("another port", f"[gpu-01]:2223 {text(MINE)}", PORT, U),
    ("hashed with the port", f"{hashed('[gpu-01]:2222')} {text(MINE)}", PORT, K),
    ("brackets are no character set", f"[gpu-01]:2222 {text(MINE)}", ("g",), U),
    ("wildcard and port", f"[gpu-*]:2222 {text(MINE)}", PORT, K),
    ("known without the port", f"gpu-01 {text(MINE)}", PORT, K),
    ("another key without the port", f"gpu-01 {text(OTHER)}", PORT, U),
    ("changed", f"gpu-01 {text(OTHER)}", PLAIN, C),
    ("changed, of another type", f"gpu-01 {text(RSA)}", PLAIN, C),
    ("one of several", f"gpu-01 {text(OTHER)}\ngpu-01 {text(RSA)}\ngpu-01 {text(MINE)}", PLAIN, K),
    ("revoked", f"gpu-01 {text(MINE)}\n@revoked * {text(MINE)}", PLAIN, R),
    ("revoked for others", f"gpu-01 {text(MINE)}\n@revoked tpu-* {text(MINE)}", PLAIN, K),
    ("another key revoked", f"gpu-01 {text(MINE)}\n@revoked * {text(OTHER)}", PLAIN, K),
    ("authority", f"@cert-authority * {text(MINE)}", PLAIN, U),
    ("authority beside", f"@cert-authority * {text(OTHER)}\ngpu-01 {text(MINE)}", PLAIN, K),
    ("unknown marker", f"@trusted gpu-01 {text(MINE)}", PLAIN, U),
    ("comments", f"# c\n\n   # d\n  gpu-01 {text(MINE)} a comment of mine\n", PLAIN, K),
    ("windows", f"gpu-01 {text(MINE)}\r\n", PLAIN, K),
    ("tabs", f"gpu-01\t{text(MINE)}", PLAIN, K),
    ("bad lines", f"x\ngpu-01 ssh-rsa\ngpu-01 ssh-rsa ====\n@\ngpu-01 {text(MINE)}", PLAIN, K),
    ("old protocol", f"gpu-01 1024 37 1234567\ngpu-01 {text(MINE)}", PLAIN, K),
    ("type and key disagree", f"gpu-01 ssh-rsa {base64.b64encode(MINE).decode()}", PLAIN, U),
    ("not text", f"\udcff\udcfe x\ngpu-01 {text(MINE)}", PLAIN, K),
]


@pytest.mark.parametrize(
    ("content", "names", "trust"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_judging_a_key(content: str, names: tuple[str, ...], trust: Trust) -> None:
    assert knownhosts.judge(knownhosts.parse(content), names, MINE).trust is trust


def test_the_line_to_blame_is_the_one_of_the_same_type(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"gpu-01 {text(RSA)}\n\ngpu-01 {text(OTHER)}\n")
    verdict = knownhosts.judge(knownhosts.load([tmp_path / "none", file]), PLAIN, MINE)
    assert verdict.where == f"{file}:3"


def test_what_is_remembered_is_known(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "known_hosts"
    for hashed_names in (False, True):
        knownhosts.remember(file, knownhosts.line_for("[gpu-01]:2222", MINE, hashed=hashed_names))
    assert len(file.read_text().splitlines()) == 2
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert knownhosts.judge(knownhosts.load([file]), PORT, MINE).trust is Trust.KNOWN


def test_a_fingerprint_as_ssh_shows_it() -> None:
    assert knownhosts.fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


@pytest.mark.parametrize(
    ("line", "peer", "trust"),
    [
        ("10.0.0.3 {other}", "10.0.0.3", Trust.CHANGED),
        ("[10.0.0.3]:22 {other}", "10.0.0.3", None),
        ("@revoked 10.0.0.3 {own}", "10.0.0.3", Trust.REVOKED),
        ("10.0.0.3 {own}", "10.0.0.3", None),
        ("10.0.0.4 {other}", "10.0.0.3", None),
        ("127.0.0.1 {other}", "127.0.0.1", None),  # as ssh: not for this machine
        ("10.0.0.3 {other}", None, None),  # nor behind a ProxyCommand
    ],
)
def test_check_host_ip_refuses_an_address_known_with_another_key(
    tmp_path: Path, line: str, peer: str | None, trust: Trust | None
) -> None:
    own, other = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    words = {
        "own": f"{own.get_name()} {own.get_base64()}",
        "other": f"{other.get_name()} {other.get_base64()}",
    }
    known = tmp_path / "known"
    known.write_text(f"node {words['own']}\n{line.format(**words)}\n")
    target = Target("node", "node", 22, "me", user_known_hosts=(known,), check_ip=True)
    verdict = Policy(target, KnownHosts(), lambda: peer)
    if trust is None:
        verdict.missing_host_key(paramiko.SSHClient(), "", own)
        return
    with pytest.raises(HostKeyRefused) as caught:
        verdict.missing_host_key(paramiko.SSHClient(), "", own)
    assert caught.value.verdict == KeyVerdict(trust, f"{known}:2")
    plain = replace(target, check_ip=False)
    Policy(plain, KnownHosts(), lambda: peer).missing_host_key(paramiko.SSHClient(), "", own)
