"""The hosts that `init` begins with: named ones, a file's, Slurm's, or those of ssh_config."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator import ranges
from orchestrator.cli.desk.out import tell
from orchestrator.config.mistakes import Wrong
from orchestrator.config.targets import read_name, read_target
from orchestrator.errors import HostError, UsageError
from orchestrator.hostlists import lists
from orchestrator.hostlists.lists import Candidate
from orchestrator.model import Host
from orchestrator.text import count

SLURM = "SLURM_JOB_NODELIST"
_FORGES = ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org")
_NAMES = "`orchestrate init gpu-01 gpu-02`, with your own hosts' names"


def choose(
    words: Sequence[str],
    hostfile: str | None,
    ssh_config: str | None,
    ask: Callable[[str], str] | None,
    *,
    yes: bool,
) -> tuple[Candidate, ...]:
    """The hosts that are meant; `ask` puts a question to a person. Raise UsageError."""
    if hostfile is not None:
        return _narrowed(lists.read(Path(hostfile)), words, f"in {hostfile}")
    if words:
        return _of_words(words)
    if nodes := os.environ.get(SLURM):
        tell(f"hosts: {nodes}, of {SLURM}")
        return _of_words([nodes])
    return _of_ssh_config(Path(ssh_config or "~/.ssh/config").expanduser(), ssh_config, ask, yes=yes)


def host(candidate: Candidate, ssh_config: str | None) -> Host:
    """Make the host as it is logged in to; its address is not known yet. Raise Wrong."""
    target = read_target(candidate.ssh)
    key = candidate.identity  # relative: to where the command runs, and hosts.toml may go elsewhere
    return Host(
        read_name(candidate.name),
        ssh=target.host,
        address=target.host,
        user=target.user,
        port=target.port,
        identity=key if key is None or key.startswith("~") else str(Path(key).absolute()),
        ssh_config=ssh_config,
    )


def _of_words(words: Sequence[str]) -> tuple[Candidate, ...]:
    candidates: dict[str, Candidate] = {}
    for word in words:
        if Path(word).is_file():
            raise UsageError(
                f"{word} is a file here", why="the words are hosts", hint=f"write --hostfile {word}"
            )
        try:
            for name in ranges.expand_all(word):
                candidates[name] = Candidate(read_name(read_target(name).host), name)
        except (ValueError, Wrong) as error:
            raise UsageError(f"a host {error}", hint=_NAMES) from error
    if not candidates:
        raise UsageError("init needs hosts", why="the words name none", hint=_NAMES)
    return tuple(candidates.values())


def _narrowed(candidates: tuple[Candidate, ...], words: Sequence[str], where: str) -> tuple[Candidate, ...]:
    """Choose those that the words name, by host or by group; all without words."""
    if not words:
        return candidates
    try:
        chosen = {name for word in words for name in ranges.expand_all(word)}
    except ValueError as error:
        raise UsageError(f"a host {error}", hint=_NAMES) from error
    names = {candidate.name for candidate in candidates} | {
        group for candidate in candidates for group in candidate.groups
    }
    if unknown := chosen - names:
        raise UsageError(
            f"{ranges.fold(unknown)} is not {where}",
            why=f"it has {ranges.fold(names)}",
            hint="name some of these",
        )
    return tuple(one for one in candidates if one.name in chosen or one.groups & chosen)


def _of_ssh_config(
    path: Path, ssh_config: str | None, ask: Callable[[str], str] | None, *, yes: bool
) -> tuple[Candidate, ...]:
    candidates = _machines([Candidate(alias, alias) for alias in lists.aliases(path)], ssh_config)
    if not candidates:
        raise UsageError("init needs hosts", why=f"{path} has none", hint=_NAMES)
    names = ranges.fold(candidate.name for candidate in candidates)
    if yes:
        tell(f"hosts: {names}, of {path}")
        return candidates
    if ask is None:
        raise UsageError(
            "init needs hosts, and nobody can be asked",
            why=f"{path} has {names}",
            hint=f"`orchestrate init {shlex.quote(names)}` takes these, as `--yes` does",
        )
    tell(f"{path} has {count(len(candidates), 'host')}: {names}")
    answer = ask("Which of them train? Names as gpu-[01-04],head; Enter takes all: ").strip()
    return _narrowed(candidates, [answer] if answer else [], f"in {path}")


def _machines(candidates: Sequence[Candidate], ssh_config: str | None) -> tuple[Candidate, ...]:
    """Leave out the doors to others and the services that take a login to serve git."""
    from orchestrator.ssh.resolve import resolve

    doors: set[str] = set()
    git: set[str] = set()
    others: set[str] = set()
    for candidate in candidates:
        try:
            target = resolve(host(candidate, ssh_config))
        except HostError:
            continue
        except Wrong as wrong:
            tell(f"left out: a host {wrong}")
            others.add(candidate.name)
            continue
        doors.update(jump.alias for jump in target.jumps)
        if target.user == "git" or target.hostname.endswith(_FORGES):
            git.add(candidate.name)
    return tuple(one for one in candidates if one.name not in doors | git | others)


def hostname(one: Host) -> str:
    """Return what ssh connects to for this host; its own name where that cannot be found out."""
    if one.is_local:
        return "127.0.0.1"
    from orchestrator.ssh.resolve import resolve

    try:
        name = resolve(one).hostname
    except HostError:
        name = one.ssh
    return name.removesuffix(".")  # of a name that is complete; no address in hosts.toml has it
