"""From the words of ssh_config to a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.ssh.resolve import CommandLine, Target, parse_dump, split_destination, target_of


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpu-01", (None, "gpu-01", None)),
        ("me@gpu-01", ("me", "gpu-01", None)),
        ("me@gpu-01:2222", ("me", "gpu-01", 2222)),
        ("gpu-01:22", (None, "gpu-01", 22)),
        ("ssh://me@gpu-01:2222/", ("me", "gpu-01", 2222)),
        ("::1", (None, "::1", None)),
        ("[::1]:2222", (None, "::1", 2222)),
        ("me@[fe80::1%eth0]", ("me", "fe80::1%eth0", None)),
        ("me@corp@gpu-01", ("me@corp", "gpu-01", None)),
        (" gpu-01 ", (None, "gpu-01", None)),
    ],
)
def test_a_destination_in_its_parts(text: str, parts: tuple[str | None, str, int | None]) -> None:
    assert split_destination(text) == parts


def dump(*lines: str) -> Target:
    return target_of(
        CommandLine("alias"),
        parse_dump("\n".join(["user train", "hostname gpu-01.example", "port 22", *lines])),
    )


@pytest.mark.parametrize(
    ("value", "new"), [("true", False), ("ask", False), ("accept-new", True), ("false", True), ("off", True)]
)
def test_strict_host_key_checking(value: str, new: bool) -> None:
    assert dump(f"stricthostkeychecking {value}").accept_new is new


def test_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    lines = ("identityagent none", "identityagent /run/mine", "loglevel INFO")
    assert [dump(line).agent for line in lines] == [None, "/run/mine", "/run/agent"]


def test_identities_chosen_or_not() -> None:
    assert dump("identityfile ~/.ssh/id_rsa", "identityfile ~/.ssh/id_ed25519").default_identities
    assert not dump("identityfile ~/.ssh/id_rsa", "identityfile ~/keys of mine").default_identities
    assert dump("identityfile none").identities == ()


def test_known_hosts_files(tmp_path: Path) -> None:
    blank = tmp_path / "a b"
    assert dump("userknownhostsfile ~/.ssh/a /b").user_known_hosts == (Path.home() / ".ssh/a", Path("/b"))
    assert dump("userknownhostsfile none").user_known_hosts == ()
    blank.touch()
    assert dump(f"userknownhostsfile {blank}").user_known_hosts == (blank,)


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ((), ("gpu-01.example",)),
        (("hostname GPU-01.Example",), ("gpu-01.example",)),
        (("port 2222",), ("[gpu-01.example]:2222", "gpu-01.example")),
        (("port 2222", "hostkeyalias Lab"), ("lab",)),
    ],
)
def test_names_of_the_host_key(lines: tuple[str, ...], names: tuple[str, ...]) -> None:
    options = {**parse_dump("user train\nhostname gpu-01.example\nport 22"), **parse_dump("\n".join(lines))}
    assert target_of(CommandLine("alias"), options).key_names == names


@pytest.mark.parametrize(
    ("line", "beyond"),
    [
        ("knownhostscommand none", ""),
        ("knownhostscommand /bin/keys %H", "KnownHostsCommand"),
        ("identityfile ~/.ssh/%h", "IdentityFile"),
        ("identityagent $MINE", "IdentityAgent"),
        ("verifyhostkeydns true", "VerifyHostKeyDNS"),
        ("pubkeyauthentication false", "PubkeyAuthentication"),
        ("preferredauthentications password", "PreferredAuthentications"),
        ("ciphers aes128-ctr,aes256-ctr", ""),
        ("ciphers -aes128*", "Ciphers"),
        ("controlpath /no/such/socket", ""),
    ],
)
def test_what_only_openssh_can_follow(line: str, beyond: str) -> None:
    assert dump(line).beyond == beyond
