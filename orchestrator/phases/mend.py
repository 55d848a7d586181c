"""Doing what findings propose, where it concerns only what is the user's: `preflight --fix`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator import wire
from orchestrator.events import CheckReported, Level
from orchestrator.fleet import Fleet

LIMIT = 1800.0  # seconds; TensorFlow is large, and a line may be slow


@dataclass(frozen=True)
class Mended:
    """A command that ran on a host, and how it ended."""

    host: str
    command: str
    error: str  # "" when it ended well


def mend(fleet: Fleet, checks: Sequence[CheckReported], on_start: Callable[[str, str], None]) -> list[Mended]:
    """Run the command of each finding that has one on its host, all hosts at once, each command once."""
    wanted: dict[str, list[tuple[str, ...]]] = {}
    for check in checks:
        if check.fix and check.level is not Level.OK and check.host in fleet.sessions:
            known = wanted.setdefault(check.host, [])
            if check.fix not in known:
                known.append(check.fix)
    done: list[Mended] = []
    while wanted:
        turn = {name: commands.pop(0) for name, commands in wanted.items()}
        wanted = {name: commands for name, commands in wanted.items() if commands}
        words: dict[str, bytearray] = {}
        for name, argv in turn.items():
            on_start(name, shlex.join(argv))
            words[name] = bytearray()
            fleet.sessions[name].on_output = end_of(words[name])
        answers = fleet.ask(
            {name: wire.Exec(argv=argv) for name, argv in turn.items()}, timeout=LIMIT, hosts=turn
        )
        for name, argv in turn.items():
            error = ""
            if name in answers.bad:
                error = answers.bad[name].what
            elif (end := answers.good[name]).status or end.error:
                error = end.error or _last(bytes(words[name])) or f"exit status {end.status}"
            done.append(Mended(name, shlex.join(argv), error))
    return done


def end_of(kept: bytearray, most: int = 4096) -> Callable[[wire.Pipe, bytes], None]:
    """Keeps the end of what a command says, which may be without end."""

    def keep(_stream: wire.Pipe, data: bytes) -> None:
        kept.extend(data)
        del kept[:-most]

    return keep


def _last(data: bytes) -> str:
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return wire.printable(lines[-1], 300) if lines else ""
