"""Before the fan-out: ask, once and one at a time, for what only a person knows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.errors import ClusterError, HostError
from orchestrator.model import Host
from orchestrator.ssh import keyfile
from orchestrator.ssh.keys import Ask, Keyring, Secrets
from orchestrator.ssh.offers import key_files, offers
from orchestrator.ssh.resolve import resolve
from orchestrator.ssh.target import Method, Target

_TRIES = 3


def prepare(hosts: Sequence[Host], ask: Ask | None = None, *, password: bool = False) -> Secrets:
    """Ask for the passphrases these hosts need, and for a login password when `password` is set.

    A key that the agent holds is not asked for, nor one of ssh's own default keys while another key
    can be offered. Without `ask` nothing is asked. An entry that cannot be resolved is left for
    `connect` to report.
    """
    keyring = Keyring()
    try:
        locked = _locked(_targets(hosts), keyring)
    finally:
        keyring.close()
    if ask is None:
        return Secrets()
    passphrases = {str(path): _passphrase(path, ask) for path in locked}
    return Secrets(passphrases, ask("Password for the login: ") if password else None)


def _targets(hosts: Sequence[Host]) -> list[Target]:
    def one(host: Host) -> tuple[Target, ...]:
        try:
            target = resolve(host)
        except HostError:
            return ()
        return (*target.jumps, target)

    with ThreadPoolExecutor(8) as pool:
        return list(dict.fromkeys(target for several in pool.map(one, hosts) for target in several))


def _locked(targets: Iterable[Target], keyring: Keyring) -> list[Path]:
    """The key files whose passphrase is needed."""
    needed: dict[Path, None] = {}
    for target in targets:
        if target.batch or Method.PUBLICKEY not in target.methods:
            continue
        held = {bytes(key.blob) for key in keyring.agent_keys(target.agent)}
        locked = [file.path for file in key_files(target, keyring) if file.locked and file.public not in held]
        if not target.default_identities or not any(True for _ in offers(target, keyring)):
            needed.update(dict.fromkeys(locked))
    return list(needed)


def _passphrase(path: Path, ask: Ask) -> str:
    for attempt in range(_TRIES):
        again = "That did not open it. " if attempt else ""
        passphrase = ask(f"{again}Passphrase for {path}: ")
        if not keyfile.load(path, passphrase).locked:
            return passphrase
    look = shlex.join(["ssh-keygen", "-y", "-f", str(path)])
    raise ClusterError(
        f"{path} stays locked",
        why=f"{_TRIES} passphrases did not open it",
        hint=f"`{look}` asks for it, too, and prints the public key; or name another key with `identity`",
    )
