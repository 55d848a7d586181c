"""Host keys that nobody knows yet: all shown at once, and kept after one yes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.desk.asking import logins, new_fleet
from orchestrator.cli.desk.out import tell
from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.text import count

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.ssh.hostkeys import HostKeyRefused

_ROUNDS = 4  # a bastion's key is seen before that of the host behind it


def connect(hosts: Sequence[Host], *, yes: bool) -> tuple[Fleet, dict[str, HostError]]:
    """Open sessions with all hosts, and with those again whose keys a person accepted, or `yes` accepts.

    A key that differs from the one that is known is never offered.
    """
    from orchestrator.ssh.hostkeys import KnownHosts

    secrets = logins(hosts)
    done: set[bytes] = set()
    for _ in range(_ROUNDS):
        fleet = new_fleet(secrets)
        bad = fleet.connect(hosts)
        refusals = {name: refusal for name, error in bad.items() if (refusal := _refusal(error))}
        new = {name: one for name, one in refusals.items() if one.blob not in done}
        keys = {(refusal.target.key_names[0], refusal.blob): refusal for refusal in new.values()}
        if not new or not _accepted(new, len({blob for _, blob in keys}), yes=yes):
            break
        done.update(blob for _, blob in keys)
        for refusal in keys.values():
            KnownHosts().remember(refusal.target, refusal.blob)
        fleet.close()
    return fleet, bad


def _refusal(error: BaseException | None) -> HostKeyRefused | None:
    """Return the refusal of a new key that is behind an error, also behind that of a bastion."""
    from orchestrator.ssh.hostkeys import HostKeyRefused, Trust

    causes: list[BaseException] = []  # one that was raised again may be its own cause
    while error is not None and error not in causes and not isinstance(error, HostKeyRefused):
        causes.append(error)
        error = error.__cause__
    if isinstance(error, HostKeyRefused) and error.trust is Trust.UNKNOWN:
        return error
    return None


def _accepted(new: Mapping[str, HostKeyRefused], number: int, *, yes: bool) -> bool:
    """Show the keys, and ask whether they are to be written."""
    from orchestrator.ssh.hostkeys import fingerprint, key_type

    tell(f"{count(len(new), 'host')} with a key that no known_hosts file has:")
    width, keys = max(map(len, new)), count(number, "key")
    for name, refusal in new.items():
        place = refusal.target.key_names[0]
        tell(f"  {name:{width}}  {key_type(refusal.blob)} {fingerprint(refusal.blob)}  {place}")
    if yes:
        tell(f"{keys} written to known_hosts, as --yes says")
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        tell("nobody can be asked: `--yes` accepts these keys")
        return False
    tell("Compare the fingerprints with what the machines' owner says (ssh-keygen -l there).")
    sys.stderr.write(f"Write {keys} to known_hosts and continue? [y/N] ")
    sys.stderr.flush()
    if not (answer := sys.stdin.readline()):  # the end of the input is a Ctrl-C
        raise KeyboardInterrupt
    return answer.strip().lower() in {"y", "yes"}
