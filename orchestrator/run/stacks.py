"""Where tasks stand: their stacks read, equal ones folded, and the one named that is unlike the others. Pure.

A node gives text as faulthandler writes it: innermost frame first, a process's main thread last.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from orchestrator import ranges, wire
from orchestrator.diagnosis.ends import essential
from orchestrator.model import Completion, Role, TaskId
from orchestrator.ranges import grouped

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'  File "(.*)", line ([0-9]{1,9}|\?\?\?) in (.*)$')
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages)/")
_STANDARD = re.compile(r".*/lib(?:64)?/python3\.\d+/(?:lib-dynload/)?")
_GENERATED = re.compile(r"<(?!string>|stdin>)|.*__autograph_generated_file")
# Where Python waits while TensorFlow's own threads run a step, a collective or a barrier. What waits for
# data (gen_dataset_ops.py) waits for nobody.
_TOGETHER = re.compile(
    r"tensorflow/python/(?:eager/(?:execute|context|core)|framework/(?:ops|tensor)|distribute/.*"
    r"|eager/polymorphic_function/.*|training/server_lib)\.py"
)
# Where the threads of a data loader are idle: they wait for somebody to take a batch or to give them work.
_IDLE = re.compile(r"(?:queue|threading|selectors|concurrent/futures/\w+|multiprocessing/\w+)\.py")
# What calls a program's code for data: in a thread, or in a process of its own.
_LOADERS = re.compile(
    r"tensorflow/python/(?:ops/script_ops|data/ops/from_generator_op)\.py|torch/utils/data/"
    r"|(?:tf_)?keras/.*(?:data_utils|data_adapter)"
)
_HOOK = re.compile(r".*/site/[0-9a-f]+/site\w+\.py$")  # ours, in a task's Python
# Where a main thread that has ended waits for other threads, and for processes.
_LEAVING = frozenset(["_shutdown", "shut_down", "_exit_function", "_python_exit"])
_STOPPED = ("T", "t")
_GONE = ("", "Z", "X")
PYTHON = "python"


class Frame(Struct, frozen=True):
    file: str  # short: within its package, or within the working folder
    line: int
    function: str
    library: str = ""  # the package it belongs to, PYTHON for the standard library; "" for the user's own

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Stand(Struct, frozen=True):
    """Where one task stands: the main thread of its first Python process, and what works beside it."""

    task: str
    host: str
    frames: tuple[Frame, ...] = ()  # innermost first
    stopped: bool = False
    why: str = ""  # why there are no frames
    step: int | None = None  # the last one it has reported
    beside: tuple[Frame, ...] = ()  # a thread or child that is busy in the program's own code

    @property
    def leaving(self) -> bool:
        """Return True if its main thread has ended, and others keep the process alive."""
        return bool(self.frames) and self.frames[-1].function in _LEAVING

    @property
    def loads(self) -> bool:
        """Return True if what works beside its main thread reads data for it, as far as a library tells."""
        return any(_LOADERS.match(frame.file) for frame in self.beside)

    @property
    def own(self) -> tuple[Frame, ...]:
        return tuple(frame for frame in self.frames if not frame.library)

    @property
    def together(self) -> bool:
        """Return True if it is where tasks wait for each other."""
        inner = next((frame for frame in self.frames if frame.library != PYTHON), None)
        return inner is not None and _TOGETHER.match(inner.file) is not None


class StackFinding(Struct, frozen=True):
    groups: tuple[tuple[Stand, ...], ...]  # equal ones together, the odd ones first, then by size
    odd: tuple[Stand, ...]  # what the others wait for, as far as one can see


def threads(text: str, cwd: str = "") -> list[tuple[Frame, ...]]:
    """The threads of one dump; what is not a frame is left out."""
    found: list[list[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            found.append([])
        elif found and (match := _FRAME.match(line)):
            found[-1].append(_frame(match, cwd))
    return [tuple(frames) for frames in found]


def living(task: wire.TaskStacks) -> wire.TaskStacks | None:
    """A task as its node told of it, without the processes that ended meanwhile; None when all have."""
    left = tuple(process for process in task.processes if process.state not in _GONE)
    return msgspec.structs.replace(task, processes=left) if left else None


def stand(task: str, host: str, processes: Sequence[wire.StackProcess], step: int | None = None) -> Stand:
    """Return what a node says of a task's processes, its first Python first."""
    if not processes:
        return Stand(task, host, why="none of its processes could be found", step=step)
    stopped = any(process.state in _STOPPED for process in processes)
    main, *others = processes
    found = threads(main.text, main.cwd)
    parts = [*found[:-1], *(frames for one in others for frames in threads(one.text, one.cwd))]
    beside = next(filter(_is_busy, parts), ())
    return Stand(task, host, found[-1] if found else (), stopped, "" if found else _why(main), step, beside)


def _is_busy(frames: Sequence[Frame]) -> bool:
    """Return True for a thread that works in code of the program, or waits there for something outside."""
    inner = list(itertools.takewhile(lambda frame: frame.library, frames))
    loads = any(_LOADERS.match(frame.file) for frame in frames)
    idle = not loads and any(_IDLE.match(frame.file) for frame in inner)
    return len(inner) < len(frames) and not idle


def find(stands: Sequence[Stand], completion: Completion) -> StackFinding:
    """Fold equal stacks, and find the odd tasks."""
    odd = _odd(stands, completion)
    groups = grouped(((one in odd, one.frames, one.stopped, one.why), one) for one in stands)
    ordered = sorted(groups.values(), key=lambda alike: (alike[0] not in odd, -len(alike)))
    return StackFinding(tuple(tuple(alike) for alike in ordered), tuple(odd))


def _odd(stands: Sequence[Stand], completion: Completion) -> list[Stand]:
    """Pick the suspect: stopped or over, else not waiting where others wait, else alone, or behind."""
    if stopped := [one for one in stands if one.stopped] or [one for one in stands if one.leaving]:
        return stopped
    gang = [one for one in stands if TaskId.parse(one.task).role in (Role.CHIEF, Role.WORKER)]
    if completion is Completion.CHIEF:  # the others only serve it, wherever they stand
        leader = essential([TaskId.parse(one.task) for one in gang], completion)[0] if gang else None
        return [one for one in gang if TaskId.parse(one.task) == leader and one.frames and not one.together]
    if len(gang) < 2:
        return []
    waiting = [one for one in gang if one.together]
    if waiting and len(waiting) < len(gang):
        elsewhere = [one for one in gang if not one.together]
        return [one for one in elsewhere if one.frames] or elsewhere
    # Where all wait together, a thread of the chief's own may only watch.
    busy = [one for one in gang if one.beside and (one.loads or not one.together)]
    if 0 < len(busy) < len(gang) and len({one.own for one in gang}) == 1:
        return busy
    # Of PyTorch and JAX it is not known where they wait for each other.
    usual, most = Counter(one.own or one.frames for one in gang).most_common(1)[0]
    if len(gang) > most > len(gang) / 2:
        return [one for one in gang if (one.own or one.frames) != usual]
    steps = {one.step for one in gang if one.step is not None}
    return [one for one in gang if one.step == min(steps)] if len(steps) > 1 else []


def place(one: Stand) -> str:
    """`at train.py:9 in nap`, and in whose hands it is there."""
    if not one.frames:
        return f"at an unknown place: {one.why}"
    beside = next((frame for frame in one.beside if not frame.library), None)
    if one.leaving:
        return "with its main thread over, and others alive" + (f" at {beside}" if beside else "")
    if beside and (one.together or one.loads):
        return f"at {beside}, beside its main thread"
    inner, own = one.frames[0], next(iter(one.own), one.frames[0])
    if own == inner:
        return f"at {own}"
    return f"at {own}, {'inside TensorFlow' if one.together else f'in {inner}'}"


def sentence(finding: StackFinding, *, hang: bool) -> str:
    """One line: which task stands out (hangs, once that is known), where, and what the others do."""
    odd = finding.odd
    if not odd:
        said = "; ".join(f"{_who(alike)} {place(alike[0])}" for alike in finding.groups[:3])
        return f"no task stands out: {said}" if said else "no task could be looked at"
    more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
    how = "is stopped (SIGSTOP)" if odd[0].stopped else "hangs" if hang else "stands out"
    at = f" {place(odd[0])}" if odd[0].frames or not odd[0].stopped else ""
    said = f"{odd[0].task} on {odd[0].host}{more} {how}{at}"
    together = [one for alike in finding.groups for one in alike if one.together and one not in odd]
    if not together:
        return said
    verb = "waits" if len(together) == 1 else "wait"
    return f"{said}; {_who(together)} {verb} for it at {next(iter(together[0].own), together[0].frames[0])}"


def _who(alike: Sequence[Stand]) -> str:
    return ranges.fold(one.task for one in alike)


def folded(finding: StackFinding) -> list[str]:
    """Each different stack once, with the tasks that have it; runs of library frames are cut short."""
    said: list[str] = []
    for alike in finding.groups:
        hosts = ranges.fold(one.host for one in alike)
        stopped = "  stopped (SIGSTOP)" if alike[0].stopped else ""
        said += ["", f"{_who(alike)}  {hosts}{stopped}", *_short(alike[0])]
    return said[1:]


def _short(one: Stand) -> list[str]:
    """The innermost frame, and of what is below it the user's own."""
    if not one.frames:
        return [] if one.stopped else [f"  {one.why}"]
    said = [f"  {one.frames[0]}"]
    for library, frames in itertools.groupby(one.frames[1:], key=lambda frame: bool(frame.library)):
        alike = list(frames)
        packages = ", ".join(dict.fromkeys(frame.library for frame in alike))
        said += [f"  ... {len(alike)} in {packages}"] if library else [f"  {frame}" for frame in alike]
    return said


def _frame(match: re.Match[str], cwd: str) -> Frame:
    path, line, function = match.groups()
    number = int(line) if line.isdigit() else 0
    if package := _PACKAGES.match(path):
        file = path[package.end() :]
        return Frame(file, number, function, file.partition("/")[0].removesuffix(".py"))
    if standard := _STANDARD.match(path):
        return Frame(path[standard.end() :], number, function, PYTHON)
    if _HOOK.match(path):
        return Frame(path.rpartition("/")[2], number, function, "orchestrate")
    library = "generated code" if _GENERATED.match(path) else ""
    file = path.removeprefix(f"{cwd.rstrip('/')}/") if cwd else path
    return Frame(file, number, function, library)


def _why(process: wire.StackProcess) -> str:
    """Return what can be said of a process without frames."""
    waits = f" ({process.waits})" if process.waits else ""
    if process.state == "D":
        return f"it is stuck in the kernel{waits}: a disk, a network file system or a GPU does not answer"
    if not process.python:
        return f"{process.argv0 or 'it'} is not Python"
    return process.why or "no answer"
