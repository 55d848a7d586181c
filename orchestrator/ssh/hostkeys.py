"""Verifying the host: paramiko asks this policy about every key, since its own store stays empty."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from pathlib import Path

import paramiko

from orchestrator.ssh import knowncommand, knownhosts, revoked
from orchestrator.ssh.knownhosts import KeyVerdict, KnownKey, Trust
from orchestrator.ssh.target import Strict, Target


class HostKeyRefused(paramiko.SSHException):
    """The host's key is not the one we know, or we know none."""

    def __init__(self, verdict: KeyVerdict, blob: bytes, target: Target) -> None:
        super().__init__(f"host key {verdict.trust.value}")
        self.verdict = verdict
        self.blob = blob
        self.target = target  # a bastion of the host, perhaps


class KnownHosts:
    """The known_hosts files of all targets, each read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[Path, ...], tuple[KnownKey, ...]] = {}

    def lines_about(self, target: Target, names: tuple[str, ...], blob: bytes | None) -> tuple[KnownKey, ...]:
        """The lines that speak of these names, from files and from the user's command.

        Raise `CommandFailedError`.
        """
        files = (*target.user_known_hosts, *target.global_known_hosts)
        with self._lock:
            if files not in self._loaded:
                self._loaded[files] = knownhosts.load(files)
            known = self._loaded[files]
        plain_or_full = names[-1] if blob is None else names[0]  # as ssh asks it
        lines = (*known, *knowncommand.keys_from(target, plain_or_full, blob))
        return tuple(key for key in lines if any(key.covers(name) for name in names))

    def types(self, target: Target) -> tuple[str, ...]:
        """The types of the keys that are known for this target; raise `CommandFailedError`."""
        lines = self.lines_about(target, target.key_names, None)
        return tuple(dict.fromkeys(key.type for key in lines if not key.marker))

    def remember(self, target: Target, blob: bytes) -> None:
        """Write a new key to the first user file, as `accept-new` promises."""
        if not target.user_known_hosts:
            return
        line = knownhosts.line_for(target.key_names[0], blob, hashed=target.hash_known_hosts)
        with self._lock:
            knownhosts.remember(target.user_known_hosts[0], line)
            self._loaded.clear()


class Policy(paramiko.MissingHostKeyPolicy):
    """Accepts a known key, remembers a new one where the user asked for that, refuses the rest.

    `peer` is the address we are connected to, None behind a bastion or a ProxyCommand.
    """

    def __init__(self, target: Target, known: KnownHosts, peer: Callable[[], str | None]) -> None:
        self._target = target
        self._known = known
        self._peer = peer

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname  # our own names decide
        blob = key.asbytes()
        verdict = self._judge(key, blob, self._peer())
        if verdict.trust is Trust.KNOWN:
            return
        if verdict.trust is Trust.UNKNOWN and self._target.strict is Strict.ACCEPT_NEW:
            self._known.remember(self._target, blob)
            return
        raise HostKeyRefused(verdict, blob, self._target)

    def _judge(self, key: paramiko.PKey, blob: bytes, peer: str | None) -> KeyVerdict:
        """In ssh's order: too short, this very machine, revoked, known, and known for its address."""
        target = self._target
        if key.get_name() == "ssh-rsa" and key.get_bits() < target.rsa_bits:
            return KeyVerdict(Trust.SHORT, f"{key.get_bits()} bits, RequiredRSASize is {target.rsa_bits}")
        local = peer is not None and ipaddress.ip_address(peer.partition("%")[0]).is_loopback
        if local and target.trust_localhost and target.known_as is None:
            return KeyVerdict(Trust.KNOWN)
        try:
            if where := revoked.revoked_in(target.revoked_keys, blob):
                return KeyVerdict(Trust.REVOKED, where)
        except revoked.CannotTellError as error:
            return KeyVerdict(Trust.UNTOLD, str(error))
        verdict = self._verdict(target.key_names, blob)
        if target.check_ip and peer and not local and peer != target.hostname:
            names = (peer,) if target.port == 22 else (f"[{peer}]:{target.port}", peer)
            by_address = self._verdict(names, blob)
            if verdict.trust is Trust.KNOWN and by_address.trust in {Trust.CHANGED, Trust.REVOKED}:
                return by_address
        return verdict

    def _verdict(self, names: tuple[str, ...], blob: bytes) -> KeyVerdict:
        return knownhosts.judge(self._known.lines_about(self._target, names, blob), names, blob)
