"""Prepares every Python of a task before its program, as the first `sitecustomize` on the PYTHONPATH.

It first imports the `sitecustomize` that Python would find without this one, whose errors are raised as
usual, and prints nothing itself. By default it only installs stacks and the error record. Each part is
independent: if one fails, the task continues without it.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

HERE = os.path.dirname(__file__)


def step_aside() -> None:
    """Import the next one on the path; `site` handles its exceptions as usual."""
    sys.path[:] = [folder for folder in sys.path if folder != HERE]
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


# --- stacks on a signal ---


def install_stacks() -> None:
    """Write the stacks on a signal, to an unnamed file that only this process holds open.

    If /proc/PID/fd lists that file, the signal is handled and does not end the process.
    """
    import faulthandler

    signum, _, path = os.environ["ORCHESTRATE_STACKS"].partition(":")
    with open("/proc/self/status") as status:  # `signal` would not show handlers installed by C code
        lines = [line.split() for line in status if line.startswith(("SigIgn:", "SigCgt:"))]
    if not any(int(words[1], 16) >> (int(signum) - 1) & 1 for words in lines):
        path = "%s.%d" % (path, os.getpid())
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.unlink(path)
        faulthandler.register(int(signum), file=file, all_threads=True)


# --- output, line by line ---


def install_lines() -> None:
    """Write whole lines, as on a terminal; unbuffered, each part of a `print` would be a separate write."""
    # Not in a child of the program: the two may communicate through it.
    if os.environ.get("PYTHONUNBUFFERED") and os.environ.get(_SPEAKER) == str(os.getpid()):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


# --- a record of the exception that ends the program ---

_SPEAKER = "ORCHESTRATE_SPEAKER"  # the pid of the Python that reports
_MESSAGE = 4000  # characters
_PLACE = 300
_LONGEST_CHAIN = 6
_PATIENCE = 10.0  # seconds from the end of a program until a note that JAX waits
_JAX_WAITS = "the program has finished, and waits up to 5 min for tasks that still run"


def install_errors() -> None:
    """Report the exception that ended the program, as one record of the task's report.

        {"kind": "error", "type", "message", "file", "line", "note", "chain": [{...}]}

    `chain` holds the exceptions it was raised from, the nearest first (`how` is "cause" or "context"). The
    previous hook is called as usual. Only the first Python of a task reports, and user scripts that it
    starts; forks and other children do not.
    """
    if "ORCHESTRATE_STACKS" not in os.environ:
        return  # off together with the stacks
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")[:4]
    if any(word.endswith(b"/torchrun") or word == b"torch.distributed.run" for word in words):
        return  # its workers report, and the first failed one counts
    pid, path = os.getpid(), os.environ["ORCHESTRATE_REPORT"]
    is_first = os.environ.setdefault(_SPEAKER, str(pid)) == str(pid)
    before = sys.excepthook

    def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
        try:
            if os.getpid() == pid and (is_first or _is_script(trace)) and not _is_late(path, kind):
                _write(path, _record(kind, value, trace))
        except Exception:
            pass  # what Python itself prints is more important
        before(kind, value, trace)

    sys.excepthook = excepthook
    if is_first:
        _watch_the_end(pid, path)


def _watch_the_end(pid: int, path: str) -> None:
    """Report an exception again, with what keeps the program alive after it.

    `threading._shutdown` begins the end of a program: threads are waited for, then processes.
    """
    import threading

    wait = threading._shutdown  # type: ignore[attr-defined]  # noqa: SLF001

    def shut_down() -> None:
        try:
            value: "Any" = getattr(sys, "last_value", None)  # set where Python prints an uncaught exception
            holders = _holders(threading) if value is not None and os.getpid() == pid else []
            if holders and not _is_late(path, type(value)):
                held = ", ".join(holders)[:_PLACE]
                _write(path, {**_record(type(value), value, value.__traceback__), "held": held})
            if value is None and os.getpid() == pid:
                _watch_jax(threading, path)
        except Exception:
            pass
        wait()

    threading._shutdown = shut_down  # type: ignore[attr-defined]  # noqa: SLF001


def _watch_jax(threading: "Any", path: str) -> None:
    """Report after a while that JAX keeps the program alive: it waits minutes for tasks with more steps."""
    distributed = sys.modules.get("jax._src.distributed")
    if distributed is None or distributed.global_state.client is None:
        return

    def report() -> None:
        try:
            _write(path, {"kind": "data", "name": "JAX", "step": _JAX_WAITS})
        except Exception:
            pass  # the disk is full

    timer = threading.Timer(_PATIENCE, report)
    timer.daemon = True
    timer.start()


def _holders(threading: "Any") -> "List[str]":
    own = threading.current_thread()
    workers = [("thread", thread) for thread in threading.enumerate() if thread is not own]
    processes = sys.modules.get("multiprocessing.process")
    workers += [("process", child) for child in processes.active_children()] if processes else []
    return ["%s %s" % (kind, worker.name) for kind, worker in workers if not worker.daemon]


def _is_script(trace: "Any") -> bool:
    file: "Any" = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None and trace is not None:  # Python 3.14 removes it before it prints the exception
        file = trace.tb_frame.f_code.co_filename
    return bool(file) and file[0] != "<" and not _is_library(os.path.abspath(file))


def _is_late(path: str, kind: "Any") -> bool:
    """Return True for a failure that follows another one: of a torchrun worker, or of a program's starter."""
    starters = ("CalledProcessError", "ChildFailedError")
    follows = "TORCHELASTIC_RUN_ID" in os.environ or kind.__name__ in starters
    if not follows or not os.path.exists(path):
        return False
    with open(path) as file:
        return '"kind": "error"' in file.read()


def _record(kind: "Any", value: "Any", trace: "Any") -> "Dict[str, Any]":
    chain: "List[Dict[str, Any]]" = []
    record = {"kind": "error", **_described(kind, value, trace), "chain": chain}
    notes = [note for note in getattr(value, "__notes__", None) or () if isinstance(note, str)]
    if notes and not notes[0].startswith("-----"):  # JAX, on how it shortened the traceback
        record["note"] = notes[0][:_PLACE]
    before = {id(value)}
    while len(chain) < _LONGEST_CHAIN:
        cause = getattr(value, "__cause__", None)
        context = None if getattr(value, "__suppress_context__", True) else value.__context__
        value = context if cause is None else cause
        if value is None or id(value) in before:
            break
        before.add(id(value))
        chain.append(_described(type(value), value, value.__traceback__))
    return record


def _described(kind: "Any", value: "Any", trace: "Any") -> "Dict[str, Any]":
    plain = kind.__module__ in ("builtins", "__main__")
    name = kind.__name__ if plain else "%s.%s" % (kind.__module__, kind.__qualname__)
    try:
        message = str(value)
    except Exception:
        message = "<exception str() failed>"
    file, line = _place(value, trace)
    if len(message) > _MESSAGE:  # TensorFlow's messages begin with code and end with the cause
        message = message[: _MESSAGE // 4] + "\n...\n" + message[5 - _MESSAGE * 3 // 4 :]
    return {"type": name[:_PLACE], "message": message[:_MESSAGE], "file": file[-_PLACE:], "line": line}


def _place(value: "Any", trace: "Any") -> "Tuple[str, int]":
    """Return the innermost line of the program where it was raised, otherwise the innermost of all."""
    if isinstance(value, SyntaxError) and value.filename:
        return value.filename, value.lineno or 0
    places = []
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [place for place in places if not _is_library(place[0])]
    return (own or places or [("", 0)])[-1]


def _is_library(file: str) -> bool:
    """Return True for packages, for code that TensorFlow generates for a graph, and for this folder."""
    made = "-packages/" in file or "__autograph_generated_file" in file
    return made or file.startswith(("<frozen", os.path.dirname(os.__file__) + "/", HERE + "/"))


def _write(path: str, record: "Dict[str, Any]") -> None:
    """Append a record in one write, so that no reader sees half of it."""
    import json  # not earlier: a program may have a module with this name

    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (json.dumps(record) + "\n").encode("ascii"))
    finally:
        os.close(file)


# --- breakpoints without a terminal ---


def install_breakpoints() -> None:
    """Make a task without a terminal skip breakpoints, with one note, instead of ending with BdbQuit."""
    if os.environ.get("PYTHONBREAKPOINT") == "0":  # set where the task started, unless the user did
        sys.breakpointhook = lambda *_, **__: skip(sys._getframe(1))  # noqa: SLF001
        from importlib.machinery import PathFinder
        from importlib.util import LazyLoader, module_from_spec

        spec: "Any" = PathFinder.find_spec("bdb")
        execute = spec.loader.exec_module

        def exec_module(module: "Any") -> None:
            execute(module)
            _change_bdb(module)

        spec.loader.exec_module = exec_module
        spec.loader = LazyLoader(spec.loader)  # few programs need it, and it takes 10 ms
        sys.modules["bdb"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["bdb"])


def _change_bdb(bdb: "Any") -> None:
    """Change the common base of pdb, ipdb and torch.distributed.breakpoint."""
    before = bdb.Bdb.set_trace

    def set_trace(self: "Any", frame: "Any" = None) -> None:
        frame = frame or sys._getframe(1)  # noqa: SLF001
        if _is_null(getattr(self, "stdin", None) or sys.stdin):  # otherwise it has input, or uses a socket
            skip(frame)
        else:
            before(self, frame)

    bdb.Bdb.set_trace = set_trace


def _is_null(stream: "Any") -> bool:
    try:
        return os.fstat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    except (OSError, ValueError, AttributeError):
        return False


def skip(frame: "Any", noted: "List[int]" = []) -> None:  # noqa: B006 - one note per process
    if not noted:
        noted.append(frame.f_lineno)
        place = "%s, line %d" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno)
        way = "this task has no terminal; `launch --attach TASK` gives it one"
        print("orchestrate: skipped the breakpoint in %s: %s" % (place, way), file=sys.stderr, flush=True)


# --- what the plan requires ---


def install_changes() -> None:
    """Change modules of the frameworks right after their import, where the plan requires it."""
    variables = ("ORCHESTRATE_KERAS", "ORCHESTRATE_KERAS_OF", "ORCHESTRATE_AUTO_SHARD", "JAX_PROCESS_ID")
    if any(name in os.environ for name in variables):
        import site_frameworks  # type: ignore[import-not-found]
        import site_meeting  # type: ignore[import-not-found]

        del sys.modules["site_frameworks"], sys.modules["site_meeting"]
        changes = {**site_frameworks.changes(), **site_meeting.changes()}
        if changes:
            sys.meta_path.insert(0, Watch(changes))


class Watch:
    """A finder that changes modules after their import, and removes itself after the last one."""

    def __init__(self, changes: "Dict[str, Callable[[Any], None]]") -> None:
        self._changes = changes

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        change = self._changes.get(name)
        if change is None:
            return None
        from importlib.machinery import PathFinder

        spec: "Any" = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        del self._changes[name]
        if not self._changes:
            sys.meta_path.remove(self)
        execute = spec.loader.exec_module

        def exec_module(module: "Any") -> None:
            del spec.loader.exec_module
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    standby = os.environ.pop("ORCHESTRATE_STANDBY", "")
    for part in (install_breakpoints, install_changes):
        _try(part)
    run = _hold(standby) if standby else None
    for part in (install_stacks, install_errors, install_lines):
        _try(part)
    if run:
        run()


def _try(part: "Callable[[], None]") -> None:
    sys.path.insert(0, HERE)
    try:
        part()
    except Exception:
        pass  # a full disk, a Python without the module: the task continues without this part
    finally:
        sys.path[:] = [folder for folder in sys.path if folder != HERE]


def _hold(standby: str) -> "Callable[[], None] | None":
    """Wait for the task with its framework imported; the script must not run before it has started."""
    try:
        sys.path.insert(0, HERE)
        import site_standby  # type: ignore[import-not-found]

        sys.path.remove(HERE)
        del sys.modules["site_standby"]
        other = getattr(sys.modules.get("sitecustomize"), "__file__", None) or os.__file__
        if os.path.dirname(other) != os.path.dirname(os.__file__):  # a user's own may depend on the task
            raise ImportError("another sitecustomize")
        run: "Callable[[], None] | None" = site_standby.hold(standby)
        return run
    except BaseException:
        os._exit(0)


if __name__ == "sitecustomize":
    try:
        step_aside()
    finally:
        install()
