"""known_hosts as OpenSSH reads it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from pathlib import Path

import pytest

from orchestrator.ssh import hostkeys
from orchestrator.ssh.hostkeys import KnownHosts, Trust
from orchestrator.ssh.resolve import Target


def blob(kind: str, content: str) -> bytes:
    return len(kind).to_bytes(4, "big") + kind.encode() + content.encode()


def text(key: bytes) -> str:
    return f"{hostkeys.key_type(key)} {base64.b64encode(key).decode()}"


MINE, OTHER, RSA = blob("ssh-ed25519", "mine"), blob("ssh-ed25519", "other"), blob("ssh-rsa", "mine")
K, U, C, R = Trust.KNOWN, Trust.UNKNOWN, Trust.CHANGED, Trust.REVOKED
PLAIN, PORT = ("gpu-01",), ("[gpu-01]:2222", "gpu-01")


def hashed(name: str) -> str:
    salt = b"12345678901234567890"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


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
    assert hostkeys.judge(hostkeys.parse(content), names, MINE).trust is trust


def test_the_line_to_blame_is_the_one_of_the_same_type(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"gpu-01 {text(RSA)}\n\ngpu-01 {text(OTHER)}\n")
    verdict = hostkeys.judge(hostkeys.load(file), PLAIN, MINE)
    assert verdict.where == f"{file}:3"


def test_what_is_remembered_is_known(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "known_hosts"
    target = Target("x", "gpu-01", 2222, "me", user_known_hosts=(file,))
    for _ in range(2):
        KnownHosts().remember(target, MINE)
    assert len(file.read_text().splitlines()) == 2
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert hostkeys.judge(hostkeys.load(file), PORT, MINE).trust is Trust.KNOWN


def test_a_fingerprint_as_ssh_shows_it() -> None:
    assert hostkeys.fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


def test_a_fifo_is_no_known_hosts_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert hostkeys.load(tmp_path / "fifo") == ()
    KnownHosts().remember(Target("x", "x", 22, "me", user_known_hosts=(tmp_path / "fifo",)), MINE)
