"""Hold a task's Python, with its framework imported, until the task starts (docs/launch.md).

ORCHESTRATE_STANDBY     `FD:MODULES:PADDING`; the padding is room for the task's marks in /proc/PID/environ

The supervisor sends the task's environment and working folder over the descriptor, and receives the reason
why this process cannot become the task, or "". Then Python opens the script. A closed descriptor ends the
process. Before that, the supervisor may send a task that is a module of ours, which runs in a fork.
"""

import gc
import json
import os
import sys
import time
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

NAME = b"ORCHESTRATE_STANDBY="
_ENV_START = 47  # of /proc/self/stat, counted after the name of the program


def hold(value: str) -> "Optional[Callable[[], None]]":
    """Wait until this process has its task; in a fork, return the program to run instead of the script."""
    number, names, _ = value.split(":", 2)
    fd = int(number)
    os.set_inheritable(fd, False)
    before, folder = {*sys.modules}, os.getcwd()
    script = _find(folder)
    why = _import(names.split(","))
    files = {path: _stamp(path) for path in _files(before)}
    os.write(fd, b"\n")
    task = _receive(fd)
    while "module" in task and not _fork():
        task = _receive(fd)
    module = task.get("module")
    try:
        os.chdir(task["cwd"])
        why = why or _changed(files) or _move(before, folder)
        why = why or ("" if module else _shadowed(before) or _replace(script, folder))
        if not why:
            report = os.environ["ORCHESTRATE_REPORT"]
            _set_environment(task["env"])
            _copy_report(report)
    except Exception as error:
        why = "it could not become the task: %r" % error
    os.write(fd, json.dumps({"why": why, "pid": os.getpid()}).encode() + b"\n")
    if why:
        os._exit(0)
    os.close(fd)
    return (lambda: _run(module)) if module else None


# --- a fork, for a module of ours ---


def _fork() -> bool:
    """Fork a process that the supervisor adopts, in a session of its own; return True in it."""
    between = os.fork()
    if between:
        if os.waitpid(between, 0)[1]:
            raise OSError("it could not fork")  # ends this process, which the supervisor detects
        return False
    between = os.getpid()
    try:
        child = os.fork()
    except OSError:
        os._exit(1)
    if child:
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    os.setsid()
    gc.freeze()
    return True


def _run(words: "List[str]") -> None:
    """Run a module as `python -m` does, to the end of the process."""
    import atexit
    import runpy

    sys.argv[:], sys.dont_write_bytecode = ["-m", *words[1:]], True
    sys.path.insert(0, os.getcwd())
    status: "Any" = 0
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        os._exit(status if isinstance(status, int) else 1)


# --- Python's own copy of the script's absolute path, which it creates before `site` (3.9 and later) ---

_WIDE = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"


def _find(folder: str) -> "List[Tuple[int, str]]":
    """Find (address, path) of the script's path, as wchar_t; with few imports this takes 10 ms."""
    result = []
    tail = (folder[-40:] + "/").encode(_WIDE, "surrogatepass")  # not all: this text itself is not one of them
    with open("/proc/self/maps") as file:
        maps = [line.split() for line in file]
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for words in maps:
            if words[1] != "rw-p" or words[-1] in ("[stack]", "[vvar]"):
                continue
            start, end = (int(number, 16) for number in words[0].split("-"))
            memory.seek(start)
            data = memory.read(end - start)
            at = data.find(tail)
            while at >= 0:
                first = at + len(tail) - 4 * (len(folder) + 1)
                text = data[max(first, 0) : at + 4 * 4096].decode(_WIDE, "replace").partition("\0")[0]
                if text.startswith(folder + "/"):
                    result.append((start + first, text))
                at = data.find(tail, at + 4)
    return result


def _replace(places: "List[Tuple[int, str]]", folder: str) -> str:
    """Let Python open the script in the working folder; return the reason if it cannot."""
    if not places and sys.argv[0] != "-m" and sys.version_info >= (3, 9):
        return "the path of its script was not found"
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for address, old in places:
            new = (os.getcwd() + old[len(folder) :] + "\0").encode(_WIDE, "surrogatepass")
            text = (old + "\0").encode(_WIDE, "surrogatepass")
            memory.seek(address)
            if memory.read(len(text)) == text:
                if len(new) > len(text):
                    return "the path of its working folder is long"
                memory.seek(address)
                memory.write(new)
    return ""


def _import(names: "List[str]") -> str:
    """Import without the garbage collector, which finds little and takes a fifth of the time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    why = _import_all(names)
    if gc.get_threshold()[0] == 0:  # otherwise an import has set it
        gc.set_threshold(*thresholds)
    gc.freeze()
    gc.unfreeze()  # now all objects are old: the next pass skips them
    return why


def _import_all(names: "List[str]") -> str:
    for name in names:
        path, *attributes = name.split("/")  # `a/b` is `from a import b`
        try:
            module: "Any" = import_module(path)
            for attribute in attributes:  # importing `tensorflow.keras` would load another module
                path += "." + attribute
                module = getattr(module, attribute) if hasattr(module, attribute) else import_module(path)
        except BaseException as error:
            return "the import of %s failed: %s" % (name, error.__class__.__name__)
    return ""


def _receive(fd: int) -> "Dict[str, Any]":
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(fd, 1 << 16)
        if not piece:
            os._exit(0)  # the process is no longer needed
        data += piece
    result: "Dict[str, Any]" = json.loads(data)
    return result


def _files(before: "Set[str]") -> "Iterator[str]":
    """Yield the files of imported modules, and the folders of packages, which must stay unchanged."""
    yield from (folder for folder in sys.path if folder.endswith("-packages"))
    for module in (module for name, module in list(sys.modules.items()) if name not in before):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            yield path


def _stamp(path: str) -> "Tuple[int, ...]":
    try:
        result = os.stat(path)
    except (OSError, ValueError):
        return ()
    return (result.st_ino, result.st_size, result.st_mtime_ns)


def _changed(files: "Dict[str, Tuple[int, ...]]") -> str:
    changed = next((path for path, stamp in files.items() if _stamp(path) != stamp), "")
    return "%s has changed" % changed if changed else ""


def _shadowed(before: "Set[str]") -> str:
    """Return the reason if the program's folder has a module with the name of one imported from elsewhere."""
    tops = {name.partition(".")[0] for name in {*sys.modules} - before} - {*sys.builtin_module_names}
    for folder in _own_folders():
        for entry in os.listdir(folder) if os.path.isdir(folder) else ():
            name, dot, _ = entry.partition(".")
            path = os.path.join(folder, entry)
            is_module = dot or (
                os.path.isdir(path) and any(e.startswith("__init__.") for e in os.listdir(path))
            )
            if name in tops and is_module and not entry.endswith((".txt", ".md", ".json", ".toml", ".ini")):
                home = getattr(sys.modules.get(name), "__file__", None) or ""
                if os.path.dirname(home) not in (folder, path):
                    return "%s may shadow a module that is already imported" % path
    return ""


def _own_folders() -> "Set[str]":
    """Return the folders that Python searches for the program's own modules: the script's, and PYTHONPATH."""
    script = sys.argv[0] if sys.argv[0] != "-m" else "."
    link = os.path.join(os.path.dirname(script), os.readlink(script)) if os.path.islink(script) else script
    own = {os.path.abspath(path if path == "." else os.path.dirname(path)) for path in (script, link)}
    own.add(os.path.dirname(os.path.realpath(script)) if script != "." else os.path.realpath(script))
    return own | {path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)}


def _move(before: "Set[str]", folder: str) -> str:
    """Update modules that have stored the working folder; return the reason if that is impossible."""
    for name, module in list(sys.modules.items()):
        values: "Any" = getattr(module, "__dict__", {}) if name not in before else {}
        for key, value in list(values.items()):
            if type(value) is str and folder in value:
                if value != folder:
                    return "%s.%s refers to the folder in which it was imported" % (name, key)
                values[key] = os.getcwd()
    return ""


def _set_environment(pairs: "List[List[str]]") -> None:
    """Replace the environment; the unread padding becomes the marks that /proc shows.

    Variables that the imports have set or removed keep their state.
    """
    made = {name.encode("latin-1"): value.encode("latin-1") for name, value in pairs}
    with open("/proc/self/environ", "rb") as file:
        block = file.read()
    given = dict(pair.split(b"=", 1) for pair in block.split(b"\0") if b"=" in pair)
    made = {name: value for name, value in made.items() if name in os.environb or name not in given}
    made.update((name, value) for name, value in os.environb.items() if given.get(name) != value)
    at = block.index(NAME)
    room = block.index(b"\0", at) - at
    names = sorted(
        (name for name in made if name.startswith(b"ORCHESTRATE_")), key=lambda name: len(made[name])
    )
    marks = b""
    for mark in (b"%s=%s\0" % (name, made[name]) for name in [b"ORCHESTRATE_TASK", *names]):
        marks += mark if len(marks) + len(mark) <= room else b""
    with open("/proc/self/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[_ENV_START])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start + at)
        memory.write(marks.ljust(room, b"\0"))
    for name in {*os.environb} - {*made}:
        del os.environb[name]
    os.environb.update(made)


def _copy_report(path: str) -> None:
    """Append what the hook has reported so far to the task's report."""
    if os.path.exists(path):
        with open(path, "rb") as old, open(os.environ["ORCHESTRATE_REPORT"], "ab") as new:
            new.write(old.read())
