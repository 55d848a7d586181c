"""Logging in: keys, then a password, and what is remembered of a refusal."""

from __future__ import annotations

from dataclasses import replace

import paramiko

from orchestrator.ssh.keys import Keyring
from orchestrator.ssh.offers import Unusable, offers, unusable
from orchestrator.ssh.target import Method, Target

_MOST = 200  # characters of what a host says


class LoginRefused(paramiko.AuthenticationException):
    """Every key was tried; what was offered, what could not be, and what the host would take."""

    def __init__(
        self,
        offered: list[str],
        unusable: Unusable,
        allowed: list[str],
        *,
        password: bool,
        ended: str | None = None,
    ) -> None:
        super().__init__("no offer was accepted")
        self.offered = offered
        self.unusable = unusable
        self.allowed = allowed
        self.password = password  # a password was tried
        self.ended = ended  # what the host said as it ended the connection over it; None: it stayed


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
                    raise self._refused(offered, allowed, ended=_last_words(transport)) from None
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
        methods = self._target.methods
        if not {Method.PASSWORD, Method.KEYBOARD} & set(methods):
            raise self._refused(offered, allowed, "ssh_config rules passwords out")
        try:
            if Method.PASSWORD in methods:
                transport.auth_password(self._target.user, password, fallback=Method.KEYBOARD in methods)
            else:
                transport.auth_interactive(self._target.user, lambda *asked: [password for _ in asked[2]])
        except paramiko.BadAuthenticationType as error:
            raise self._refused(offered, list(error.allowed_types)) from error
        except paramiko.AuthenticationException as error:
            raise self._refused(offered, allowed) from error

    def _refused(
        self, offered: list[str], allowed: list[str], ruled_out: str = "", ended: str | None = None
    ) -> LoginRefused:
        lacking = unusable(self._target, self._keyring)
        if ruled_out:
            lacking = replace(lacking, lines=(*lacking.lines, ruled_out))
        tried = self._keyring.password is not None and not ruled_out
        return LoginRefused(offered, lacking, allowed, password=tried, ended=ended)


def _last_words(transport: paramiko.Transport) -> str:
    """What the host said as it hung up, else what it has people read at their login; "" for nothing."""
    shown: bytes | None = getattr(transport.auth_handler, "banner", None)
    banner = (shown or b"").decode("utf-8", "replace")
    words = " ".join((getattr(transport, "farewell", "") or banner).split())
    return "".join(char if char.isprintable() else "?" for char in words[-_MOST:])
