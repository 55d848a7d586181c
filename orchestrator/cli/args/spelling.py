"""Words of other tools on our command line: they work where they can mean one thing, else one sentence.

Imports nothing heavy: every command line passes here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from orchestrator.errors import UsageError

# A first word -> our verb. Nothing that ends anything is guessed: `kill` could be with or without grace.
_SAME_VERB = {"logs": "tail", "attach": "tail", "check": "preflight", "ls": "runs", "list": "runs"}
_TWO_VERBS = {
    "ps": ("may mean all runs or the tasks of one", "`orchestrate runs` or `orchestrate status [RUN]`"),
    "kill": (
        "may mean with or without time to save",
        "`orchestrate stop [RUN]` lets tasks save, `orchestrate stop --now [RUN]` does not",
    ),
    "cancel": ("is called stop here", "`orchestrate stop [RUN]`"),
    "run": ("is called launch here", "`orchestrate launch -- train.py`"),
    "start": ("is called launch here", "`orchestrate launch -- train.py`"),
    "ssh": ("is not a verb here", "`orchestrate exec -- uptime` runs one command on all hosts"),
}
_VERSION = ("-V", "-v", "version")  # alone; behind a verb -v is something else

# An option of another tool, for the verbs where it can mean one thing -> ours; "" is what happens anyway.
_SAME_OPTION: dict[tuple[str, str], str] = {
    ("tail", "-f"): "",
    ("tail", "-F"): "",
    ("tail", "--follow"): "",
    ("tail", "--lines"): "-n",
    ("launch", "-d"): "--detach",
    ("rehearse", "-np"): "-n",
    ("clean", "-y"): "--yes",
    ("init", "-y"): "--yes",
    ("clean", "-n"): "--dry-run",
    ("preflight", "-i"): "--hosts",
    ("exec", "-w"): "--only",
    ("exec", "-x"): "--exclude",
}
_MANY = (
    "how many tasks run is written in hosts.toml",
    "write tasks = {} under [defaults]: so many on each host; --only chooses hosts",
)
_WHICH = (
    "which hosts there are is written in hosts.toml",
    "`orchestrate init gpu-01 gpu-02` writes one; --only gpu-01,gpu-02 chooses among its hosts",
)
_OTHERS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("-np", "-n", "--np", "--nproc_per_node", "--nproc-per-node", "--num_processes", "--tasks"), _MANY
    ),
    **dict.fromkeys(("--nnodes", "--nodes", "-N"), (_MANY[0], "choose hosts with --only 'gpu-[01-04]'")),
    **dict.fromkeys(("-H", "--host", "-w", "--nodelist"), _WHICH),
    **dict.fromkeys(
        ("--hostfile", "--machinefile", "-hostfile", "-machinefile", "-i"),
        (_WHICH[0], "`orchestrate init --hostfile FILE` makes one of it"),
    ),
    **dict.fromkeys(
        ("--gpus", "--gres", "--gpus-per-node"),
        (
            "which GPUs tasks use is written in hosts.toml",
            "write devices = [0, 1] under [[host]] (default: all)",
        ),
    ),
    **dict.fromkeys(
        ("--master_addr", "--master_port", "--master-addr", "--master-port", "--rdzv_endpoint"),
        ("TF_CONFIG tells tasks of each other", "leave it out; task_port in hosts.toml chooses the port"),
    ),
    **dict.fromkeys(
        ("-v", "-vv", "--verbose"),
        ("nothing can be made louder", "leave it out; --debug shows tracebacks"),
    ),
    **dict.fromkeys(
        ("-q", "--quiet", "--silent", "-s"),
        (
            "what orchestrate says is on stderr, what tasks print on stdout",
            "add 2>/dev/null, which leaves their lines",
        ),
    ),
    **{
        f"--{key}": ("that is written in hosts.toml", f"write {key} = {value} under [defaults] or [[host]]")
        for key, value in {
            "python": '"~/.venvs/train/bin/python"',
            "workdir": '"~/orchestrate"',
            "user": '"me"',
            "identity": '"~/.ssh/id_ed25519"',
        }.items()
    },
    "--inventory": ("--hosts names the inventory", "write --hosts in its place"),
    "--hosts": ("hosts are plain words here", "`orchestrate init gpu-01 gpu-02`"),
    "--background": ("it is called --detach here", "write --detach"),
    **dict.fromkeys(
        ("--skip-validate", "--skip-validation", "--no-validation"),
        ("it is called --no-validate here", "write --no-validate"),
    ),
    "-d": ("-d is --detach, which launch has", "`orchestrate launch --detach`"),
    "-V": ("-V is the version, without a verb", "`orchestrate --version`"),
    "--detach": ("only launch can be left alone", "`orchestrate launch --detach`"),
    "--force": ("stop has --now for that: KILL at once", "`orchestrate stop --now`"),
    "-9": ("stop has --now for that: KILL at once", "`orchestrate stop --now`"),
}


def ours(words: Sequence[str], verbs: Sequence[str]) -> list[str]:
    """The same command line in our own words; raise UsageError for a verb that may mean two things."""
    if not words:
        return []
    first, rest = words[0], list(words[1:])
    if first in _VERSION and not rest:
        return ["--version"]
    if first == "help":
        return _help(rest, verbs)
    if first in _TWO_VERBS:
        why, hint = _TWO_VERBS[first]
        raise UsageError(f"{first!r} is not a verb of orchestrate", why=f"it {why}", hint=hint)
    verb = _SAME_VERB.get(first, first)
    return [verb, *_options(verb, rest)]


def _help(rest: Sequence[str], verbs: Sequence[str]) -> list[str]:
    if not rest:
        return ["--help"]
    verb = _SAME_VERB.get(rest[0], rest[0])
    return [verb, "--help"] if verb in verbs else [verb]  # which is refused, as anywhere


def _options(verb: str, words: Sequence[str]) -> list[str]:
    out: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        same = _SAME_OPTION.get((verb, name))
        if same is None:
            out.append(word)
        elif same:
            out.append(f"{same}{equals}{value}")
    return out


def of_another_tool(words: Sequence[str], verb: str, known: Callable[[str], bool]) -> UsageError | None:
    """What to say of the first word that nobody takes, when another tool has it."""
    name, _, value = words[0].partition("=")
    if name not in _OTHERS and (short := re.fullmatch(r"(-np?|-N)([0-9]+)", name)):
        name, value = short[1], short[2]
    if name not in _OTHERS or known(name):
        return None
    if not value and len(words) > 1 and not words[1].startswith("-"):
        value = words[1]
    why, hint = _OTHERS[name]
    return UsageError(
        f"orchestrate {verb} has no option {words[0]}",
        why=why,
        hint=hint.format(value if value.isdigit() else "2"),
    )
