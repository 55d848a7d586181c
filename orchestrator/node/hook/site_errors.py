"""Has a Python program say which exception ended it, as one record of the task's report.

    {"kind": "error", "type", "message", "file", "line", "note", "chain": [{..., "how"}]}

`chain` holds what it was raised from, the nearest first (`how` is "cause" or "context"), and in front of it
what a group holds ("part"). The program's own hooks stay in force: ours writes and hands on, and where one of
the program's has taken its place, what ended the program is written at its end.

Only the first Python of a task speaks for it: a child that a program starts reports nothing, and neither does
a process that was forked. An exception in a thread ends no program, so nothing is written.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

_SPEAKER = "ORCHESTRATE_SPEAKER"  # the pid of the Python that reports
_MESSAGE = 4000  # characters
_PLACE = 300
_LONGEST_CHAIN = 6
_PARTS = 2  # of a group


def install() -> None:
    if "ORCHESTRATE_STACKS" not in os.environ:
        return  # off, with the stacks
    pid, path = os.getpid(), os.environ["ORCHESTRATE_REPORT"]
    if os.environ.get(_SPEAKER, str(pid)) != str(pid):
        return
    os.environ[_SPEAKER] = str(pid)
    told = _hook(pid, path)
    _watch_exits(pid, path, told)


def _hook(pid: int, path: str) -> "List[object]":
    """What it fills is what was written."""
    before = sys.excepthook
    told: "List[object]" = []

    def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
        try:
            if os.getpid() == pid:
                told.append(value)
                _write(path, _record(kind, value, trace))
        except Exception:
            pass  # what Python itself prints matters more
        before(kind, value, trace)

    sys.excepthook = excepthook
    return told


def _watch_exits(pid: int, path: str, told: "List[object]") -> None:
    """What passes no hook of ours is written when the program does end.

    `sys.exit("usage: ...")` passes none: its words are kept. An exception that a hook of the program's own
    has printed is where Python keeps the last one.
    """
    import _thread
    import atexit

    exit_: "Any" = sys.exit
    words: "List[object]" = []
    left: "List[object]" = []
    main = _thread.get_ident()

    def leave(*status: "Any") -> None:
        if _thread.get_ident() == main:
            said = len(status) == 1 and status[0] is not None and not isinstance(status[0], int)
            words[:] = [status[0]] if said else []
            left.append(status)
        exit_(*status)

    def write() -> None:
        try:
            if os.getpid() != pid:
                return
            value = None if told or left else getattr(sys, "last_value", None)
            if words:
                text = str(words[0])[:_MESSAGE]
                _write(path, {"kind": "error", "type": "SystemExit", "message": text})
            elif value is not None:
                _write(path, _record(type(value), value, value.__traceback__))
        except Exception:
            pass

    leave.__name__, leave.__doc__ = "exit", exit_.__doc__
    sys.exit = leave  # type: ignore[assignment]
    atexit.register(write)


def _record(kind: "Any", value: "Any", trace: "Any") -> "Dict[str, Any]":
    record = {"kind": "error", **_described(kind, value, trace)}
    notes = [note for note in getattr(value, "__notes__", None) or () if isinstance(note, str)]
    if notes:
        record["note"] = notes[0][:_PLACE]
    record["chain"] = _parts(value) + _chain(value)
    return record


def _parts(group: "Any") -> "List[Dict[str, Any]]":
    """The first exceptions that a group holds, at whatever depth."""
    found: "List[Dict[str, Any]]" = []
    waiting = [group]
    while waiting and len(found) < _PARTS:
        one = waiting.pop(0)
        if type(one).__name__.endswith("Group") and isinstance(getattr(one, "exceptions", None), tuple):
            waiting[:0] = one.exceptions
        elif one is not group:
            found.append({**_described(type(one), one, one.__traceback__), "how": "part"})
    return found


def _described(kind: "Any", value: "Any", trace: "Any") -> "Dict[str, Any]":
    name = kind.__name__ if kind.__module__ in ("builtins", "__main__") else _qualified(kind)
    try:
        message = str(value)
    except Exception:
        message = "<exception str() failed>"
    file, line = _place(value, trace)
    return {"type": name[:_PLACE], "message": message[:_MESSAGE], "file": file[-_PLACE:], "line": line}


def _qualified(kind: "Any") -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _place(value: "Any", trace: "Any") -> "Tuple[str, int]":
    """Where it was raised: the innermost line of the program's own, else the innermost one."""
    if isinstance(value, SyntaxError) and value.filename:
        return value.filename, value.lineno or 0
    places = []
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [place for place in places if not _is_library(place[0])]
    return (own or places or [("", 0)])[-1]


def _is_library(file: str) -> bool:
    """Not the program's own; neither is what TensorFlow makes of a function for a graph, nor ours."""
    made = "-packages/" in file or "__autograph_generated_file" in file
    ours = os.path.dirname(__file__)
    return made or file.startswith(("<frozen", os.path.dirname(os.__file__) + "/", ours + "/"))


def _chain(value: "Any") -> "List[Dict[str, Any]]":
    found: "List[Dict[str, Any]]" = []
    seen = {id(value)}
    while len(found) < _LONGEST_CHAIN:
        cause = getattr(value, "__cause__", None)
        context = None if getattr(value, "__suppress_context__", True) else value.__context__
        value, how = (cause, "cause") if cause is not None else (context, "context")
        if value is None or id(value) in seen:
            break
        seen.add(id(value))
        found.append({**_described(type(value), value, value.__traceback__), "how": how})
    return found


def _write(path: str, record: "Dict[str, Any]") -> None:
    """One write a record, so that no reader sees half of one."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    file = os.open(path, flags, 0o600)
    try:
        os.write(file, (_json(record) + "\n").encode("ascii"))
    finally:
        os.close(file)


def _json(value: "Any") -> str:
    """Without the module: a program may have a `json.py` of its own, and this may be its last moment."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join('"%s": %s' % (key, _json(value[key])) for key in value)
    if isinstance(value, list):
        return "[%s]" % ", ".join(map(_json, value))
    return str(value) if isinstance(value, int) else '"%s"' % "".join(map(_escaped, value))


def _escaped(letter: str) -> str:
    code = ord(letter)
    if 0x20 <= code < 0x7F and letter not in '"\\':
        return letter
    if code < 0x10000:
        return "\\u%04x" % code
    code -= 0x10000
    return "\\u%04x\\u%04x" % (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF))
