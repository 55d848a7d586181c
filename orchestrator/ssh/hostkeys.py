"""Verifying the host: paramiko asks this policy about every key, since its own store stays empty."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import paramiko

from orchestrator.ssh import knownhosts
from orchestrator.ssh.knownhosts import KnownKey, Trust, Verdict
from orchestrator.ssh.target import Strict, Target

_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # how a key of type ssh-rsa signs


class HostKeyRefused(paramiko.SSHException):
    """The host's key is not the one we know, or we know none."""

    def __init__(self, verdict: Verdict, blob: bytes) -> None:
        super().__init__(f"host key {verdict.trust.value}")
        self.verdict = verdict
        self.blob = blob


class KnownHosts:
    """The known_hosts files of all targets, each read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[Path, ...], tuple[KnownKey, ...]] = {}

    def for_target(self, target: Target) -> tuple[KnownKey, ...]:
        """The lines that speak of this target."""
        files = (*target.user_known_hosts, *target.global_known_hosts)
        with self._lock:
            if files not in self._loaded:
                self._loaded[files] = knownhosts.load(files)
            known = self._loaded[files]
        return tuple(key for key in known if any(key.covers(name) for name in target.key_names))

    def types(self, target: Target) -> tuple[str, ...]:
        """The types of the keys that are known for this target."""
        return tuple(dict.fromkeys(key.type for key in self.for_target(target) if not key.marker))

    def remember(self, target: Target, blob: bytes) -> None:
        """Write a new key to the first user file, as `accept-new` promises."""
        if not target.user_known_hosts:
            return
        line = knownhosts.line_for(target.key_names[0], blob, hashed=target.hash_known_hosts)
        with self._lock:
            knownhosts.remember(target.user_known_hosts[0], line)
            self._loaded.clear()


class Policy(paramiko.MissingHostKeyPolicy):
    """Accepts a known key, remembers a new one where the user asked for that, refuses the rest."""

    def __init__(self, target: Target, known: KnownHosts) -> None:
        self._target = target
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname  # our own names decide
        blob = key.asbytes()
        verdict = knownhosts.judge(self._known.for_target(self._target), self._target.key_names, blob)
        if verdict.trust is Trust.KNOWN:
            return
        if verdict.trust is Trust.UNKNOWN and self._target.strict is Strict.ACCEPT_NEW:
            self._known.remember(self._target, blob)
            return
        raise HostKeyRefused(verdict, blob)


def preferred(types: tuple[str, ...], available: Sequence[str]) -> tuple[str, ...]:
    """The host key algorithms, those first whose keys can be checked against known_hosts."""
    wanted = [name for kind in types for name in (_RSA if kind == "ssh-rsa" else (kind,))]
    head = [name for name in dict.fromkeys(wanted) if name in available]
    return (*head, *(name for name in available if name not in head))
