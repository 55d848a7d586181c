"""Host keys that nobody knows yet: all shown at once, and kept after one yes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.desk.asking import new_fleet
from orchestrator.cli.desk.out import tell
from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.text import count

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.ssh.hostkeys import HostKeyRefused
    from orchestrator.ssh.keys import Secrets

_ROUNDS = 4  # a bastion's key is seen before that of the host behind it


def connect(
    hosts: Sequence[Host], secrets: Secrets | None, accept: Callable[[int], bool]
) -> tuple[Fleet, dict[str, HostError]]:
    """Open sessions with all hosts, and with those again whose keys a person accepted.

    `accept(number of keys)` is asked once all new keys of a round are shown. A key that differs from the one
    that is known is never offered.
    """
    from orchestrator.ssh.hostkeys import KnownHosts

    seen: set[bytes] = set()
    for _ in range(_ROUNDS):
        fleet = new_fleet(secrets)
        bad = fleet.connect(hosts)
        new = {name: refusal for name, refusal in _unknown(bad).items() if refusal.blob not in seen}
        if not new:
            break
        _show(new)
        if not accept(len({refusal.blob for refusal in new.values()})):
            break
        seen.update(refusal.blob for refusal in new.values())
        written = {(refusal.target.key_names[0], refusal.blob): refusal for refusal in new.values()}
        for refusal in written.values():
            KnownHosts().remember(refusal.target, refusal.blob)
        fleet.close()
    return fleet, bad


def _unknown(bad: Mapping[str, HostError]) -> dict[str, HostKeyRefused]:
    from orchestrator.ssh.hostkeys import Trust

    refusals = {name: refusal for name, error in bad.items() if (refusal := _refusal(error))}
    return {name: one for name, one in refusals.items() if one.trust is Trust.UNKNOWN}


def _refusal(error: BaseException | None) -> HostKeyRefused | None:
    """Return what is behind an error, also behind that of a bastion."""
    from orchestrator.ssh.hostkeys import HostKeyRefused

    seen: list[BaseException] = []  # one that was raised again may be its own cause
    while error is not None and error not in seen and not isinstance(error, HostKeyRefused):
        seen.append(error)
        error = error.__cause__
    return error if isinstance(error, HostKeyRefused) else None


def _show(new: Mapping[str, HostKeyRefused]) -> None:
    from orchestrator.ssh.hostkeys import fingerprint, key_type

    tell(f"{count(len(new), 'host')} with a key that no known_hosts file has:")
    width = max(map(len, new))
    for name, refusal in new.items():
        place = refusal.target.key_names[0]
        tell(f"  {name:{width}}  {key_type(refusal.blob)} {fingerprint(refusal.blob)}  {place}")
