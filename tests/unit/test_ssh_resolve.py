"""From the words of ssh_config to a target."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator.ssh.resolve import CommandLine, Strict, Target, parse_dump, split_destination, target_of


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
    ("value", "strict"),
    [
        ("true", Strict.REFUSE),
        ("ask", Strict.REFUSE),
        ("accept-new", Strict.ACCEPT_NEW),
        ("false", Strict.ACCEPT_NEW),
        ("off", Strict.ACCEPT_NEW),
    ],
)
def test_strict_host_key_checking(value: str, strict: Strict) -> None:
    assert dump(f"stricthostkeychecking {value}").strict is strict


@pytest.mark.parametrize(
    ("line", "agent"),
    [
        ("identityagent none", None),
        ("identityagent SSH_AUTH_SOCK", "/run/agent"),
        ("identityagent $MY_AGENT", "/run/mine"),
        ("identityagent ${MY_AGENT}.2", "/run/mine.2"),
        ("identityagent /run/%r/agent", "/run/train/agent"),
        ("loglevel INFO", "/run/agent"),
    ],
)
def test_the_agent(line: str, agent: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("MY_AGENT", "/run/mine")
    assert dump(line).agent == agent


def test_identities_chosen_or_not() -> None:
    assert dump("identityfile ~/.ssh/id_rsa", "identityfile ~/.ssh/id_ed25519").default_identities
    chosen = dump("identityfile ~/.ssh/id_rsa", "identityfile ~/keys of mine/%r")
    assert not chosen.default_identities
    assert chosen.identities[1] == Path.home() / "keys of mine" / "train"
    assert dump("identityfile none").identities == ()


def test_known_hosts_files(tmp_path: Path) -> None:
    blank = tmp_path / "a b"
    assert dump("userknownhostsfile ~/.ssh/a /b").user_known_hosts == (Path.home() / ".ssh/a", Path("/b"))
    assert dump("userknownhostsfile none").user_known_hosts == ()
    assert dump(f'userknownhostsfile "{blank}" /c').user_known_hosts == (blank, Path("/c"))
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


@pytest.mark.parametrize(("value", "seconds"), [("none", None), ("0", None), ("7", 7.0)])
def test_the_connect_timeout(value: str, seconds: float | None) -> None:
    assert dump(f"connecttimeout {value}").connect_timeout == seconds


@pytest.mark.parametrize(
    ("value", "family"), [("any", socket.AF_UNSPEC), ("inet", socket.AF_INET), ("inet6", socket.AF_INET6)]
)
def test_the_address_family(value: str, family: socket.AddressFamily) -> None:
    assert dump(f"addressfamily {value}").family is family


@pytest.mark.parametrize(
    ("line", "beyond"),
    [
        ("knownhostscommand none", ""),
        ("knownhostscommand /bin/keys %H", "KnownHostsCommand"),
        ("revokedhostkeys /etc/ssh/revoked", "RevokedHostKeys"),
        ("certificatefile ~/.ssh/mine-cert.pub", "CertificateFile"),
        ("pkcs11provider /usr/lib/opensc.so", "PKCS11Provider"),
        ("proxycommand nc %h %p", "ProxyCommand"),
        ("setenv A=1", "SetEnv"),
        ("verifyhostkeydns true", "VerifyHostKeyDNS"),
        ("nohostauthenticationforlocalhost yes", "NoHostAuthenticationForLocalhost"),
        ("pubkeyauthentication true", ""),
        ("pubkeyauthentication false", "PubkeyAuthentication"),
        ("preferredauthentications password", "PreferredAuthentications"),
        ("ciphers aes128-ctr,aes256-ctr", ""),
        ("ciphers -aes128*", "Ciphers"),
        ("controlpath /no/such/socket", ""),
        ("gssapiauthentication yes", ""),
    ],
)
def test_what_only_openssh_can_follow(line: str, beyond: str) -> None:
    assert dump(line).beyond == beyond
