"""Logging in: which keys are offered and in what order, and what is remembered of a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from orchestrator.ssh import keyfile
from orchestrator.ssh.keys import Keyring
from orchestrator.ssh.target import Target


@dataclass(frozen=True)
class Offer:
    """A key to be tried; `label` is how a person knows it: its path or the agent's comment."""

    label: str
    key: paramiko.PKey


class LoginRefused(paramiko.AuthenticationException):
    """Every key was tried; what was offered, what could not be, and what the host would take."""

    def __init__(
        self, offered: list[str], unusable: list[str], allowed: list[str], *, password: bool
    ) -> None:
        super().__init__("no offer was accepted")
        self.offered = offered
        self.unusable = unusable
        self.allowed = allowed
        self.password = password  # a password was tried


class Login:
    """Authenticates one connection; what the client of paramiko calls an auth strategy."""

    def __init__(self, target: Target, keyring: Keyring) -> None:
        self._target = target
        self._keyring = keyring

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in or raise; `LoginRefused` when the host listened and said no to everything."""
        offered: list[str] = []
        allowed: list[str] = []
        for offer in offers(self._target, self._keyring):
            offered.append(offer.label)
            try:
                wanted = transport.auth_publickey(self._target.user, offer.key)
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
                break
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error):
                    raise TimeoutError("no answer to the login") from error
                if not transport.is_active():  # the host had enough
                    raise self._refused([*offered], allowed) from None
                continue
            if not wanted:
                return
            allowed = list(wanted)  # the key was one of two factors
            break
        self._try_password(transport, offered, allowed)

    def _try_password(self, transport: paramiko.Transport, offered: list[str], allowed: list[str]) -> None:
        password = self._keyring.password
        if password is None:
            raise self._refused(offered, allowed)
        try:
            transport.auth_password(self._target.user, password)
        except paramiko.BadAuthenticationType as error:
            raise self._refused(offered, list(error.allowed_types)) from error
        except paramiko.AuthenticationException as error:
            raise self._refused(offered, allowed) from error

    def _refused(self, offered: list[str], allowed: list[str]) -> LoginRefused:
        unusable = [f"{path} {problem}" for path, problem in problems(self._target, self._keyring)]
        return LoginRefused(offered, unusable, allowed, password=self._keyring.password is not None)


def offers(target: Target, keyring: Keyring) -> Iterator[Offer]:
    """The keys for a target: chosen ones in the agent, chosen files, the agent's others, ssh's own files.

    Chosen files come before the agent's other keys, since a host hangs up after a few refusals.
    """
    held = keyring.agent_keys(target.agent)
    files = key_files(target, keyring)
    in_files = {file.public for file in files if file.public}
    chosen_first = not target.default_identities
    mine = [key for key in held if _blob(key) in in_files]
    others = [] if target.identities_only else [key for key in held if _blob(key) not in in_files]
    in_agent = {_blob(key) for key in mine}
    loaded = [Offer(str(file.path), file.key) for file in files if file.key and not _held(file.key, in_agent)]
    yield from map(_agent_offer, mine)
    if chosen_first:
        yield from loaded
    yield from map(_agent_offer, others)
    if not chosen_first:
        yield from loaded


def key_files(target: Target, keyring: Keyring) -> list[keyfile.Loaded]:
    """The identity files that exist, each once, with a certificate that was named for it."""
    paths = [path for path in dict.fromkeys(target.identities) if path.is_file()]
    return [keyring.file(path, _certificate_for(path, target)) for path in paths]


def problems(target: Target, keyring: Keyring) -> list[tuple[Path, str]]:
    """Why keys of this target could not be offered."""
    return [(file.path, file.problem) for file in key_files(target, keyring) if file.problem]


def _held(key: paramiko.PKey, in_agent: set[bytes]) -> bool:
    """Whether the agent offers the same; a certificate beside the file makes it another offer."""
    return key.public_blob is None and key.asbytes() in in_agent


def _certificate_for(path: Path, target: Target) -> Path | None:
    """CertificateFile names no key: the one that lies beside, else the only one."""
    beside = [certificate for certificate in target.certificates if certificate.name.startswith(path.name)]
    if beside:
        return beside[0]
    return target.certificates[0] if len(target.certificates) == 1 and not target.default_identities else None


def _agent_offer(key: paramiko.AgentKey) -> Offer:
    return Offer(f"{key.comment or key.get_name()} (ssh-agent)", key)


def _blob(key: paramiko.AgentKey) -> bytes:
    return bytes(key.blob)
