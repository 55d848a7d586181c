"""What the plan itself tells, without the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath

from orchestrator import ranges
from orchestrator.findings import codes
from orchestrator.findings.look import Finding, Scene
from orchestrator.findings.programs import Rule
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.planning.plan import is_builtin
from orchestrator.program.project import normal

USUAL = (32768, 60999)  # net.ipv4.ip_local_port_range, unless it was changed; preflight asks each host
_LEFT_OUT = "git, .orchestrateignore or `ignore` leaves it out"
_BRINGS = re.compile(r"tensorflow|^tf|keras", re.IGNORECASE)
_OF_TENSORFLOW = frozenset(("tensorflow", "keras", "tf_keras"))
_WRITES = re.compile(r"(?:export\s+|declare -x\s+)?TF_CONFIG=")
_OPENS = re.compile(r"(?:^|;)\s*(?:if|case|for|while|until)\s|\(\)\s*\{")
_CLOSES = re.compile(r"(?:^|;)\s*(?:fi|esac|done)\b|^\}")
_REMOVES = re.compile(r"unset\s+(?:-v\s+)?TF_CONFIG\b")


def shell(scene: Scene) -> Iterator[Finding]:
    """`export TF_CONFIG=...` at the beginning of a line, where the script names it for the first time."""
    source = scene.shell
    if source is None or "<<" in source.text:
        return
    depth = 0
    for number, line in enumerate(source.text.split("\n"), start=1):
        depth += len(_OPENS.findall(line)) - len(_CLOSES.findall(line))
        if "TF_CONFIG" not in line or line.lstrip().startswith("#"):
            continue
        if depth:
            return
        removes = _REMOVES.match(line) is not None and scene.workers > 1
        if removes or (_WRITES.match(line) and line.count("TF_CONFIG") == 1):
            yield Finding(
                codes.CONFIG,
                f"the script removes TF_CONFIG: each of the {scene.workers} workers then trains alone"
                if removes
                else "the script replaces the TF_CONFIG that orchestrate sets: tasks may then wait for others"
                " that never come",
                "remove that line",
                source.path,
                number,
            )
        return


def proxy(scene: Scene) -> Iterator[Finding]:
    """GRPC asks grpc_proxy before https_proxy and http_proxy, and our default is that it is empty."""
    if len(scene.plan.tasks) < 2:
        return
    led = {
        str(task.id): task.env["grpc_proxy"]
        for task in scene.plan.tasks
        if task.env.get("grpc_proxy") and not (task.env.get("no_grpc_proxy") or task.env.get("no_proxy"))
    }
    if led:
        who = "all tasks" if len(led) == len(scene.plan.tasks) else ranges.fold(led)
        yield Finding(
            codes.PROXY,
            f"grpc_proxy={next(iter(led.values()))} leads {who} to each other through that proxy: they then"
            " wait without an error",
            "leave grpc_proxy out, or name the hosts in no_grpc_proxy",
        )


def ephemeral(scene: Scene) -> Iterator[Finding]:
    low, high = USUAL
    inside = [task for task in scene.plan.tasks if low <= task.port <= high]
    if inside:
        yield Finding(
            codes.EPHEMERAL,
            f"task port {inside[0].port} of {inside[0].host} lies in {low}-{high}, from which Linux takes"
            " ports for outgoing connections unless told otherwise: it may be taken when the task starts",
            "choose a `task_port` below that",
        )


def unsent(scene: Scene) -> Iterator[Finding]:
    for path in scene.unsent:
        yield Finding(
            codes.PATH,
            f"the argument {path} is not sent: {_LEFT_OUT}, or a link leads to it",
            f"name data in [data]: tasks find it as $ORCHESTRATE_DATA/{PurePosixPath(path).name}",
        )


def unread(scene: Scene) -> Iterator[Finding]:
    """Relative paths in the program that are there, in a folder that is sent without them."""
    for one in scene.readings:
        path = normal(one.path)
        if one.path.startswith(("/", "~")) or not path:
            continue
        if path in scene.sent or any(sent.startswith(f"{path}/") for sent in scene.sent):
            continue
        outside = path == ".." or path.startswith("../")
        why = "it lies outside of the folder that is sent" if outside else _LEFT_OUT
        yield Finding(
            codes.PATH,
            f"{one.path} is not on the hosts: {why}",
            f"name it in [data], and read it there: $ORCHESTRATE_DATA/{PurePosixPath(path).name}",
            one.source.path,
            one.line,
        )


def _imports(source: SourceFile) -> Iterator[int]:
    """The lines that import a part of TensorFlow."""
    for node in source.nodes:
        match node:
            case ast.Import(names=names):
                named = [one.name for one in names]
            case ast.ImportFrom(module=str(module), level=0):
                named = [module]
            case _:
                continue
        if any(name.partition(".")[0] in _OF_TENSORFLOW for name in named):
            yield node.lineno


def unnamed(scene: Scene) -> Iterator[Finding]:
    """TensorFlow is among none of the packages, nor is any that may bring it along."""
    if scene.installs is None or any(_BRINGS.search(name) for name in scene.installs):
        return
    what = "[env] installs no TensorFlow, and {} it: `packages` replaces the default list"
    fix = "add tf-keras and tensorflow-cpu (or tensorflow[and-cuda]) to `packages`"
    if is_builtin(scene.plan.command):
        yield Finding(codes.UNNAMED, what.format("worker_entry trains with"), fix)
        return
    lines = ((source.path, line) for source in scene.sources for line in _imports(source))
    for path, line in islice(lines, 1):
        yield Finding(codes.UNNAMED, what.format("the program imports"), fix, path, line)


RULES: tuple[Rule, ...] = (shell, proxy, ephemeral, unsent, unread, unnamed)
