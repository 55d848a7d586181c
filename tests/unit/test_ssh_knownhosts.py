"""known_hosts as OpenSSH reads it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from pathlib import Path

import pytest

from orchestrator.ssh import hostkeys
from orchestrator.ssh.hostkeys import Beyond, KnownHosts, KnownKey, Trust
from orchestrator.ssh.resolve import Target


def blob(kind: str, content: str) -> bytes:
    return len(kind).to_bytes(4, "big") + kind.encode() + content.encode()


def text(key: bytes) -> str:
    return f"{hostkeys.key_type(key)} {base64.b64encode(key).decode()}"


MINE, OTHER, RSA = blob("ssh-ed25519", "mine"), blob("ssh-ed25519", "other"), blob("ssh-rsa", "mine")
K, U, C = Trust.KNOWN, Trust.UNKNOWN, Trust.CHANGED
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
    ("hashed", f"{hashed('gpu-01')} {text(MINE)}", PLAIN, K),
    ("hashed, another name", f"{hashed('gpu-02')} {text(MINE)}", PLAIN, U),
    ("hashed, broken", f"|1|!!|?? {text(MINE)}", PLAIN, U),
    ("with the port", f"[gpu-01]:2222 {text(MINE)}", PORT, K),
    ("another port", f"[gpu-01]:2223 {text(MINE)}", PORT, U),
    ("hashed with the port", f"{hashed('[gpu-01]:2222')} {text(MINE)}", PORT, K),
    ("known without the port", f"gpu-01 {text(MINE)}", PORT, K),
    ("another key without the port", f"gpu-01 {text(OTHER)}", PORT, U),
    ("changed", f"gpu-01 {text(OTHER)}", PLAIN, C),
    ("changed, of another type", f"gpu-01 {text(RSA)}", PLAIN, C),
    ("one of several", f"gpu-01 {text(OTHER)}\ngpu-01 {text(RSA)}\ngpu-01 {text(MINE)}", PLAIN, K),
    ("comments", f"# c\n\n   # d\n  gpu-01 {text(MINE)} a comment of mine\n", PLAIN, K),
    ("windows", f"gpu-01 {text(MINE)}\r\n", PLAIN, K),
    ("bad lines", f"x\ngpu-01 ssh-rsa\ngpu-01 ssh-rsa ====\ngpu-01 {text(MINE)}", PLAIN, K),
    ("old protocol", f"gpu-01 1024 37 1234567\ngpu-01 {text(MINE)}", PLAIN, K),
    ("type and key disagree", f"gpu-01 ssh-rsa {base64.b64encode(MINE).decode()}", PLAIN, U),
    ("not text", f"\udcff\udcfe x\ngpu-01 {text(MINE)}", PLAIN, K),
]


def keys(file: Path, content: str) -> list[KnownKey]:
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    return [key for found in hostkeys.load(file).values() for key in found]


@pytest.mark.parametrize(
    ("content", "names", "trust"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_judging_a_key(tmp_path: Path, content: str, names: tuple[str, ...], trust: Trust) -> None:
    assert hostkeys.judge(keys(tmp_path / "known", content), names, MINE)[0] is trust


@pytest.mark.parametrize("begins", ["@revoked *", "@cert-authority gpu-*", "gpu-??,gpu-01", "!gpu-01,x"])
def test_a_file_with_markers_or_patterns_is_openssh_s(tmp_path: Path, begins: str) -> None:
    with pytest.raises(Beyond, match="known:2"):
        keys(tmp_path / "known", f"gpu-01 {text(MINE)}\n{begins} {text(OTHER)}\n")


def test_the_line_to_blame_is_the_one_of_the_same_type(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    lines = keys(file, f"gpu-01 {text(RSA)}\n\ngpu-01 {text(OTHER)}\n")
    assert hostkeys.judge(lines, PLAIN, MINE) == (Trust.CHANGED, f"{file}:3")


def test_what_is_remembered_is_known(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "known_hosts"
    target = Target("x", "gpu-01", 2222, "me", user_known_hosts=(file,))
    for _ in range(2):
        KnownHosts().remember(target, MINE)
    assert len(file.read_text().splitlines()) == 2
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert hostkeys.judge(keys(file, file.read_text()), PORT, MINE)[0] is Trust.KNOWN


def test_a_fingerprint_as_ssh_shows_it() -> None:
    assert hostkeys.fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


def test_a_fifo_is_no_known_hosts_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert hostkeys.load(tmp_path / "fifo") == {}
    KnownHosts().remember(Target("x", "x", 22, "me", user_known_hosts=(tmp_path / "fifo",)), MINE)
