"""Task stacks: parsing them, grouping equal ones, and finding the task that differs from the others. Pure.

A node sends text in faulthandler's format: innermost frame first, a process's main thread last.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from orchestrator import ranges, wire
from orchestrator.diagnosis.ends import essential
from orchestrator.model import Completion, Role, TaskId
from orchestrator.ranges import grouped
from orchestrator.value import Value

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'  File "(.*)", line ([0-9]{1,9}|\?\?\?) in (.*)$')
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages)/")
_STANDARD = re.compile(r".*/lib(?:64)?/python3\.\d+/(?:lib-dynload/)?")
_GENERATED = re.compile(r"<(?!string>|stdin>)|.*__autograph_generated_file")
# Where Python waits while a framework's own threads run a step, a collective or a barrier: in PyTorch the
# gradients are exchanged during `backward`. A task that waits for data (gen_dataset_ops.py) does not wait for
# another task. JAX has no frame of its own there.
_TOGETHER = re.compile(
    r"tensorflow/python/(?:eager/(?:execute|context|core)|framework/(?:ops|tensor)|distribute/.*"
    r"|eager/polymorphic_function/.*|training/server_lib)\.py"
    r"|torch/(?:distributed/(?!elastic/|launcher/|run\.py).*|autograd/graph|nn/parallel/distributed"
    r"|cuda/__init__)\.py"
)
# Where idle threads of a data loader wait for a consumer or for work.
_IDLE = re.compile(r"(?:queue|threading|selectors|concurrent/futures/\w+|multiprocessing/\w+)\.py")
# What calls a program's data code: in a thread, or in a process of its own.
_LOADERS = re.compile(
    r"tensorflow/python/(?:ops/script_ops|data/ops/from_generator_op)\.py|torch/utils/data/"
    r"|(?:tf_)?keras/.*(?:data_utils|data_adapter)"
)
# Where a loader's own process or thread waits for its next batch.
_BETWEEN = re.compile(r"torch/utils/data/_utils/(?:worker|pin_memory)\.py")
# Commands that start the program as a child and wait for it.
_LAUNCHERS = re.compile(r"torch/distributed/(?:elastic/|launcher/|run\.py)|accelerate/commands/")
_HOOK = re.compile(r".*/site/[0-9a-f]+/site\w+\.py$")  # ours, in a task's Python
# Where an ended main thread waits for other threads, and for processes.
_EXITING = frozenset(["_shutdown", "shut_down", "_exit_function", "_python_exit"])
_STOPPED = ("T", "t")
_GONE = ("", "Z", "X")
PYTHON = "python"


class Frame(Value):
    file: str  # short: within its package, or within the working folder
    line: int
    function: str
    library: str = ""  # its package; PYTHON for the standard library, "" for the user's own

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Stack(Value):
    """One task's stack: the main thread of its program's first Python process, and a busy one beside it."""

    task: str
    host: str
    frames: tuple[Frame, ...] = ()  # innermost first
    stopped: bool = False
    why: str = ""  # why there are no frames
    step: int | None = None  # the last step that it reported
    beside: tuple[Frame, ...] = ()  # a thread or child that is busy in the program's own code

    @property
    def leaving(self) -> bool:
        """Return True if its main thread has ended, and others keep the process alive."""
        return bool(self.frames) and self.frames[-1].function in _EXITING

    @property
    def loads(self) -> bool:
        """Return True if the busy thread beside its main thread loads data, judging by the library."""
        return _has(self.beside, _LOADERS)

    @property
    def own(self) -> tuple[Frame, ...]:
        return tuple(frame for frame in self.frames if not frame.library)

    @property
    def together(self) -> bool:
        """Return True if it waits in a collective operation, as tasks do for each other."""
        return _TOGETHER.match(_inner(self.frames)) is not None


class StackFinding(Value):
    groups: tuple[tuple[Stack, ...], ...]  # equal ones together, the odd ones first, then by size
    odd: tuple[Stack, ...]  # what the others appear to wait for


def _inner(frames: Sequence[Frame]) -> str:
    """Return the file of the innermost frame outside the standard library; "" if there is none."""
    return next((frame.file for frame in frames if frame.library != PYTHON), "")


def threads(text: str, cwd: str) -> list[tuple[Frame, ...]]:
    """Return the threads of one dump; lines that are not frames are skipped."""
    stacks: list[list[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            stacks.append([])
        elif stacks and (match := _FRAME.match(line)):
            stacks[-1].append(_frame(match, cwd))
    return [tuple(frames) for frames in stacks]


def living(task: wire.TaskStacks) -> wire.TaskStacks | None:
    """Return a task as its node reported it, without processes that have ended; None if all have."""
    alive = tuple(process for process in task.processes if process.state not in _GONE)
    return msgspec.structs.replace(task, processes=alive) if alive else None


def stack_of(task: str, host: str, processes: Sequence[wire.StackProcess], step: int | None = None) -> Stack:
    """Return a task's stack from its node's report on its processes, its first Python first."""
    if not processes:
        return Stack(task, host, why="none of its processes could be found", step=step)
    stopped = any(process.state in _STOPPED for process in processes)
    dumps = [threads(process.text, process.cwd) for process in processes]
    place = _place_of_program([dump[-1] if dump else () for dump in dumps])
    main = dumps.pop(place)
    beside = next(filter(_is_busy, itertools.chain(main[:-1], *dumps)), ())
    why = "" if main else _why(processes[place])
    return Stack(task, host, main[-1] if main else (), stopped, why, step, beside)


def _place_of_program(mains: Sequence[Sequence[Frame]]) -> int:
    """Return which main thread of a task's processes represents it.

    It is the first; of programs started by a command such as torchrun, one that does not wait for others.
    """
    if not _has(mains[0], _LAUNCHERS):
        return 0
    programs = [
        n for n, main in enumerate(mains) if main and not _has(main, _LAUNCHERS) and not _has(main, _BETWEEN)
    ]
    return next((n for n in programs if not _TOGETHER.match(_inner(mains[n]))), next(iter(programs), 0))


def _has(frames: Sequence[Frame], pattern: re.Pattern[str]) -> bool:
    return any(pattern.match(frame.file) for frame in frames)


def _is_busy(frames: Sequence[Frame]) -> bool:
    """Return True for a thread that works in the program's code, or waits there for something external."""
    inner_file = _inner(frames)
    if _BETWEEN.match(inner_file) or _TOGETHER.match(inner_file) or _has(frames, _LAUNCHERS):
        return False
    inner = list(itertools.takewhile(lambda frame: frame.library, frames))
    idle = not _has(frames, _LOADERS) and _has(inner, _IDLE)
    return len(inner) < len(frames) and not idle


def find(stacks: Sequence[Stack], completion: Completion) -> StackFinding:
    """Group equal stacks, and find the tasks that differ."""
    odd = _odd(stacks, completion)
    groups = grouped(((stack in odd, stack.frames, stack.stopped, stack.why), stack) for stack in stacks)
    ordered = sorted(groups.values(), key=lambda alike: (alike[0] not in odd, -len(alike)))
    return StackFinding(tuple(tuple(alike) for alike in ordered), tuple(odd))


def _odd(stacks: Sequence[Stack], completion: Completion) -> list[Stack]:
    """Return the suspects: stopped or exiting, not waiting where others do, alone, or behind."""
    if stopped := [stack for stack in stacks if stack.stopped]:
        return stopped
    if leaving := [stack for stack in stacks if stack.leaving]:
        return leaving
    gang = [stack for stack in stacks if TaskId.parse(stack.task).role in (Role.CHIEF, Role.WORKER)]
    if completion is Completion.CHIEF:  # the others only serve it, wherever they are
        leader = essential([TaskId.parse(stack.task) for stack in gang], completion)[0] if gang else None
        return [
            stack
            for stack in gang
            if TaskId.parse(stack.task) == leader and stack.frames and not stack.together
        ]
    if len(gang) < 2:
        return []
    waiting = [stack for stack in gang if stack.together]
    if waiting and len(waiting) < len(gang):
        elsewhere = [stack for stack in gang if not stack.together]
        return [stack for stack in elsewhere if stack.frames] or elsewhere
    reading = [stack for stack in gang if _has(stack.frames, _LOADERS)]  # it waits for data
    if 0 < len(reading) < len(gang):  # a GPU's step is waited for in the program's own line
        return reading
    # Where all wait together, a thread of the chief's own may only be monitoring.
    busy = [stack for stack in gang if stack.beside and (stack.loads or not stack.together)]
    if 0 < len(busy) < len(gang) and len({stack.own for stack in gang}) == 1:
        return busy
    # It is not known where JAX waits for the others.
    usual, most = Counter(stack.own or stack.frames for stack in gang).most_common(1)[0]
    if len(gang) > most > len(gang) / 2:
        return [stack for stack in gang if (stack.own or stack.frames) != usual]
    steps = {stack.step for stack in gang if stack.step is not None}
    return [stack for stack in gang if stack.step == min(steps)] if len(steps) > 1 else []


def place(stack: Stack) -> str:
    """Return `at train.py:9 in nap`, and the innermost call in it."""
    if not stack.frames:
        return f"at an unknown place: {stack.why}"
    beside = next((frame for frame in stack.beside if not frame.library), None)
    if stack.leaving:
        return "with its main thread ended, and others alive" + (f" at {beside}" if beside else "")
    if beside and (stack.together or stack.loads):
        return f"at {beside}, beside its main thread"
    inner, own = stack.frames[0], next(iter(stack.own), stack.frames[0])
    if own == inner:
        return f"at {own}"
    in_tensorflow = stack.together and _inner(stack.frames).startswith("tensorflow")
    return f"at {own}, {'inside TensorFlow' if in_tensorflow else f'in {inner}'}"


def sentence(finding: StackFinding, *, hang: bool) -> str:
    """Return one line: which task differs (hangs, once that is known), where, and what the others do."""
    odd = finding.odd
    if not odd:
        groups = "; ".join(f"{_who(alike)} {place(alike[0])}" for alike in finding.groups[:3])
        return f"no task differs from the others: {groups}" if groups else "no task could be examined"
    more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
    how = "is stopped (SIGSTOP)" if odd[0].stopped else "hangs" if hang else "differs from the others:"
    at = f" {place(odd[0])}" if odd[0].frames or not odd[0].stopped else ""
    groups = f"{odd[0].task} on {odd[0].host}{more} {how}{at}"
    together = [stack for alike in finding.groups for stack in alike if stack.together and stack not in odd]
    if not together:
        return groups
    verb = "waits" if len(together) == 1 else "wait"
    return f"{groups}; {_who(together)} {verb} for it at {next(iter(together[0].own), together[0].frames[0])}"


def _who(alike: Sequence[Stack]) -> str:
    return ranges.fold(stack.task for stack in alike)


def folded(finding: StackFinding) -> list[str]:
    """Return each different stack once, with its tasks; runs of library frames are shortened."""
    output: list[str] = []
    for alike in finding.groups:
        hosts = ranges.fold(stack.host for stack in alike)
        stopped = "  stopped (SIGSTOP)" if alike[0].stopped else ""
        output += ["", f"{_who(alike)}  {hosts}{stopped}", *_short(alike[0])]
    return output[1:]


def _short(stack: Stack) -> list[str]:
    """Return its frames; runs of library frames are shortened."""
    if not stack.frames:
        return [] if stack.stopped else [f"  {stack.why}"]
    output = [f"  {stack.frames[0]}"]
    for library, frames in itertools.groupby(stack.frames[1:], key=lambda frame: bool(frame.library)):
        alike = list(frames)
        packages = ", ".join(dict.fromkeys(frame.library for frame in alike))
        output += [f"  ... {len(alike)} in {packages}"] if library else [f"  {frame}" for frame in alike]
    return output


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
    """Return what is known about a process without frames."""
    waits = f" ({process.waits})" if process.waits else ""
    if process.state == "D":
        return f"it is stuck in the kernel{waits}: a disk, a network file system or a GPU does not answer"
    if not process.python:
        return f"{process.argv0 or 'it'} is not Python"
    return process.why or "no answer"
