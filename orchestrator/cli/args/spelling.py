"""Words of other tools on our command line: they work where they can mean one thing, else one sentence.

Imports nothing heavy: every command line passes here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from orchestrator.errors import UsageError

# A first word -> our verb. Nothing that ends anything is guessed: `kill` could be with or without grace.
_SAME_VERB = {
    "logs": "tail",
    "attach": "tail",
    "check": "preflight",
    "ls": "runs",
    "list": "runs",
    "tb": "tensorboard",
}
_LAUNCH = ("is called launch here", "`orchestrate launch -- {}`")
_TWO_VERBS = {
    **dict.fromkeys(
        ("ps", "get", "describe", "inspect", "show", "squeue", "jobs", "history"),
        ("may mean all runs or the tasks of one", "`orchestrate runs` or `orchestrate status [RUN]`"),
    ),
    "top": ("is called status here", "`orchestrate status --watch`"),
    **dict.fromkeys(
        ("rm", "delete", "remove", "prune", "purge"),
        (
            "may mean a run or what ended ones have left",
            "`orchestrate stop [RUN]` ends a run, `orchestrate clean` removes what is old",
        ),
    ),
    **dict.fromkeys(
        ("cp", "scp", "sync", "rsync", "fetch", "download", "upload"),
        (
            "may mean to the hosts or from them",
            "`orchestrate push` brings data there, `orchestrate pull [RUN]` fetches what a run wrote",
        ),
    ),
    **dict.fromkeys(
        ("nodes", "hosts", "sinfo", "ping", "doctor", "test"),
        ("is called preflight here", "`orchestrate preflight`"),
    ),
    **dict.fromkeys(("wait", "follow", "watch"), ("is called tail here", "`orchestrate tail [RUN]`")),
    "kill": (
        "may mean with or without time to save",
        "`orchestrate stop [RUN]` lets tasks save, `orchestrate stop --now [RUN]` does not",
    ),
    **dict.fromkeys(("cancel", "scancel", "down"), ("is called stop here", "`orchestrate stop [RUN]`")),
    **dict.fromkeys(
        ("run", "start", "up", "train", "submit", "sbatch", "srun", "mpirun", "horovodrun", "torchrun"),
        _LAUNCH,
    ),
    "lint": (
        "is a part of each launch",
        "`orchestrate launch --dry-run -- {}` shows what is found, and contacts no host",
    ),
    "ssh": ("is not a verb here", "`orchestrate exec -- uptime` runs one command on all hosts"),
}
_VERSION = ("-V", "-v", "version")  # alone; behind a verb -v is something else

# An option of another tool, for the verbs where it can mean one thing -> ours; "" is what happens anyway.
_SAME_OPTION: dict[tuple[str, str], str] = {
    ("tail", "-f"): "",
    ("tail", "-F"): "",
    ("tail", "--follow"): "",
    ("tail", "--lines"): "-n",
    ("tail", "--tail"): "-n",
    ("tail", "-t"): "--timestamps",
    ("runs", "-l"): "",
    ("status", "-w"): "--watch",
    ("launch", "-d"): "--detach",
    ("launch", "-e"): "--env",
    ("rehearse", "-e"): "--env",
    ("launch", "-J"): "--name",
    ("launch", "--job-name"): "--name",
    ("rehearse", "-np"): "-n",
    ("clean", "-y"): "--yes",
    ("init", "-y"): "--yes",
    **{
        ("init", name): "--hostfile"
        for name in ("-i", "-f", "--inventory", "--machinefile", "-hostfile", "-machinefile")
    },
    ("clean", "-n"): "--dry-run",
    ("preflight", "-i"): "--hosts",
    ("exec", "-w"): "--only",
    ("exec", "-x"): "--exclude",
    ("exec", "-a"): "",
    ("exec", "-b"): "",
    ("exec", "-S"): "",
}
_MANY = (
    "how many tasks run is written in hosts.toml",
    "write tasks = {} under [defaults]: so many on each host; --only chooses hosts",
)
_PEERS = ("TF_CONFIG tells tasks of each other", "leave it out; task_port in hosts.toml chooses the port")
_VARIABLE = ("a variable of the tasks is given by --env", "write --env {}")
_WHICH = (
    "which hosts there are is written in hosts.toml",
    "`orchestrate init gpu-01 gpu-02` writes one; --only gpu-01,gpu-02 chooses among its hosts",
)
_OTHERS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            *("-np", "-n", "--np", "--nproc_per_node", "--nproc-per-node", "--num_processes", "--tasks"),
            *("--ntasks", "--ntasks-per-node", "--npernode", "-npernode", "-ppn"),
        ),
        _MANY,
    ),
    **dict.fromkeys(("--nnodes", "--nodes", "-N"), (_MANY[0], "choose hosts with --only 'gpu-[01-04]'")),
    **dict.fromkeys(("-H", "-host", "--host", "-w", "--nodelist"), _WHICH),
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
        (
            *("--master_addr", "--master_port", "--master-addr", "--master-port", "--node_rank"),
            *("--node-rank", "--standalone"),
            *(f"--rdzv{dash}{what}" for dash in "-_" for what in ("endpoint", "backend", "id", "conf")),
        ),
        _PEERS,
    ),
    **dict.fromkeys(("-x", "-e", "--export", "-genv"), _VARIABLE),
    **dict.fromkeys(
        ("--partition", "--qos", "--cpus-per-task", "--mem-per-cpu"),
        ("nothing waits in a queue: the hosts of hosts.toml are taken at once", "leave it out"),
    ),
    **dict.fromkeys(
        ("-it", "-ti", "--tty", "--interactive"),
        ("a command has no terminal and no input there", "`ssh` to one host gives a terminal"),
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
_ASKS = ("clean asks before it removes anything", "write --yes, and nobody is asked")
_PLAIN = ("hosts are plain words here", "`orchestrate init gpu-01 gpu-02`")
_OWN_HOSTS = ("it makes hosts of its own on this machine", "write -n {}: so many")
_AT_ONCE = ("all hosts are asked at once", "leave it out")
_TIME_OUT = ("a command has no time limit", "write `timeout 10` before the command, behind --")
_ONE_RUN = ("a run is stopped by its id or name", "`orchestrate runs` lists them")
# Those that mean something else to one verb.
_OF_ONE_VERB: dict[tuple[str, str], tuple[str, str]] = {
    ("clean", "-f"): _ASKS,
    ("clean", "--force"): _ASKS,
    ("exec", "-f"): _AT_ONCE,
    ("exec", "--fanout"): _AT_ONCE,
    ("exec", "-t"): _TIME_OUT,
    ("exec", "-u"): _TIME_OUT,
    ("exec", "-l"): _OTHERS["--user"],
    ("exec", "-g"): ("hosts.toml has no groups", "--only 'gpu-[01-03],head' names hosts"),
    **{("init", name): _PLAIN for name in ("-H", "-host", "--host", "-w", "--nodelist", "--hosts")},
    **{
        ("rehearse", name): _OWN_HOSTS
        for name in ("--hosts", "--host", "-H", "--nodes", "--nnodes", "-N", "--only", "--exclude")
    },
    ("stop", "--all"): _ONE_RUN,
    ("stop", "-a"): _ONE_RUN,
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
        command = shlex.join(rest) if rest and not rest[0].startswith("-") else "train.py"
        what = f"{first!r} is not a verb of orchestrate"
        raise UsageError(what, why=f"it {why}", hint=hint.format(command))
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
        same = "--help" if word == "-help" else _SAME_OPTION.get((verb, name))
        if same is None and verb in ("tail", "runs") and re.fullmatch(r"-[0-9]+", word):
            out += ["-n", word[1:]]
        elif same is None:
            out.append(word)
        elif same:
            out.append(f"{same}{equals}{value}")
    return out


def long_with_one_hyphen(words: Sequence[str], verb: str) -> UsageError | None:
    """What to say of mpirun's -hostfile: argparse reads -h in it, and says so."""
    at = next((at for at, word in enumerate(words) if word in ("-host", "-hostfile")), None)
    return None if at is None else of_another_tool(words[at:], verb, lambda _: False)


def of_another_tool(words: Sequence[str], verb: str, known: Callable[[str], bool]) -> UsageError | None:
    """What to say of the first word that nobody takes, when another tool has it."""
    name, _, value = words[0].partition("=")
    if name not in _OTHERS and (short := re.fullmatch(r"(-np?|-N)([0-9]+)", name)):
        name, value = short[1], short[2]
    own = _OF_ONE_VERB.get((verb, name))
    if (name not in _OTHERS and own is None) or known(name):
        return None
    if not value and len(words) > 1 and not words[1].startswith("-"):
        value = words[1]
    why, hint = own or _OTHERS[name]
    value = _assigned(value) if hint is _VARIABLE[1] else value if value.isdigit() else "2"
    return UsageError(f"orchestrate {verb} has no option {words[0]}", why=why, hint=hint.format(value))


def _assigned(text: str) -> str:
    """K=V as --env takes it; of a name alone the shell is to say its value."""
    if "=" in text:
        return shlex.quote(text)
    return f'{text}="${text}"' if re.fullmatch(r"[A-Za-z_]\w*", text) and text != "ALL" else "NAME=VALUE"
