"""Before the fan-out: ask, once and one at a time, for what only a person knows."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.errors import ClusterError, HostError
from orchestrator.model import Host, Way
from orchestrator.ssh.keys import Ask, Keyring, Secrets, load
from orchestrator.ssh.openssh import open_masters
from orchestrator.ssh.resolve import Target, resolve

_TRIES = 3


def prepare(
    hosts: Sequence[Host], ask: Ask | None = None, *, tell: Callable[[str], None] = lambda _: None
) -> Secrets:
    """Ask for the passphrases these hosts need; OpenSSH asks by itself for the hosts that are its own.

    A key that the agent holds is not asked for, nor one of ssh's own default keys while another key
    can be offered. Without `ask` nothing is asked. An entry that cannot be resolved is left for
    `connect` to report.
    """
    if ask is None:
        return Secrets()
    targets = _targets(hosts)
    over_openssh = [
        host
        for host in hosts
        if host.name in targets
        and (host.via is Way.OPENSSH or (host.via is Way.AUTO and targets[host.name].beyond))
    ]
    masters = open_masters(over_openssh, tell) if over_openssh else None
    names = {host.name for host in over_openssh}
    ours = [part for name, target in targets.items() if name not in names for part in (*target.jumps, target)]
    return Secrets(
        {str(path): _passphrase(path, ask) for path in _locked(list(dict.fromkeys(ours)))}, masters
    )


def _targets(hosts: Sequence[Host]) -> dict[str, Target]:
    def target(host: Host) -> Target | None:
        try:
            return resolve(host)
        except HostError:
            return None

    over_ssh = [host for host in hosts if host.via in (Way.AUTO, Way.PARAMIKO, Way.OPENSSH)]
    with ThreadPoolExecutor(8) as pool:
        pairs = zip(over_ssh, pool.map(target, over_ssh), strict=True)
        return {host.name: result for host, result in pairs if result is not None}


def _locked(targets: Sequence[Target]) -> list[Path]:
    """Return the key files whose passphrase is needed."""
    keyring, needed = Keyring(), dict[Path, None]()
    try:
        for target in targets:
            held = {bytes(key.blob) for key in keyring.agent_keys(target.agent)}
            locked = [file.path for file in keyring.files(target) if file.locked and file.public not in held]
            if not target.default_identities or not any(True for _ in keyring.offers(target)):
                needed.update(dict.fromkeys(locked))
    finally:
        keyring.close()
    return list(needed)


def _passphrase(path: Path, ask: Ask) -> str:
    for attempt in range(_TRIES):
        again = "That did not open it. " if attempt else ""
        passphrase = ask(f"{again}Passphrase for {path}: ")
        if not load(path, passphrase).locked:
            return passphrase
    look = shlex.join(["ssh-keygen", "-y", "-f", str(path)])
    raise ClusterError(
        f"{path} stays locked",
        why=f"{_TRIES} passphrases did not open it",
        hint=f"`{look}` asks for it, too, and prints the public key; or name another key with `identity`",
    )
