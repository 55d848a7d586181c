"""Has a Python program say which exception ended it, as one record of the task's report.

    {"kind": "error", "type", "message", "file", "line", "note", "chain": [{..., "how"}]}

`chain` holds what it was raised from, the nearest first (`how` is "cause" or "context"), and in front of it
what a group holds ("part"). The hook that was there before is called as ever.

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
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")[:4]
    if any(word.endswith(b"/torchrun") or word == b"torch.distributed.run" for word in words):
        return  # its workers speak, the first of them that fails
    pid, path = os.getpid(), os.environ["ORCHESTRATE_REPORT"]
    if os.environ.setdefault(_SPEAKER, str(pid)) != str(pid):
        return
    before = sys.excepthook

    def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
        try:
            if os.getpid() == pid and not _is_late(path):
                _write(path, _record(kind, value, trace))
        except Exception:
            pass  # what Python itself prints matters more
        before(kind, value, trace)

    sys.excepthook = excepthook


def _is_late(path: str) -> bool:
    """Return True for a worker of torchrun after another one that failed."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or not os.path.exists(path):
        return False
    with open(path) as file:
        return '"kind": "error"' in file.read()


def _record(kind: "Any", value: "Any", trace: "Any") -> "Dict[str, Any]":
    record = {"kind": "error", **_described(kind, value, trace)}
    notes = [note for note in getattr(value, "__notes__", None) or () if isinstance(note, str)]
    if notes:
        record["note"] = notes[0][:_PLACE]
    record["chain"] = _parts(value) + _chain(value)
    return record


def _parts(group: "Any") -> "List[Dict[str, Any]]":
    """The first exceptions that a group holds, at whatever depth."""
    parts: "List[Dict[str, Any]]" = []
    waiting = [group]
    while waiting and len(parts) < _PARTS:
        error = waiting.pop(0)
        if type(error).__name__.endswith("Group") and isinstance(getattr(error, "exceptions", None), tuple):
            waiting[:0] = error.exceptions
        elif error is not group:
            parts.append({**_described(type(error), error, error.__traceback__), "how": "part"})
    return parts


def _chain(value: "Any") -> "List[Dict[str, Any]]":
    chain: "List[Dict[str, Any]]" = []
    before = {id(value)}
    while len(chain) < _LONGEST_CHAIN:
        cause = getattr(value, "__cause__", None)
        context = None if getattr(value, "__suppress_context__", True) else value.__context__
        value, how = (cause, "cause") if cause is not None else (context, "context")
        if value is None or id(value) in before:
            break
        before.add(id(value))
        chain.append({**_described(type(value), value, value.__traceback__), "how": how})
    return chain


def _described(kind: "Any", value: "Any", trace: "Any") -> "Dict[str, Any]":
    plain = kind.__module__ in ("builtins", "__main__")
    name = kind.__name__ if plain else "%s.%s" % (kind.__module__, kind.__qualname__)
    try:
        message = str(value)
    except Exception:
        message = "<exception str() failed>"
    file, line = _place(value, trace)
    return {"type": name[:_PLACE], "message": message[:_MESSAGE], "file": file[-_PLACE:], "line": line}


def _place(value: "Any", trace: "Any") -> "Tuple[str, int]":
    """The innermost line of the program's own where it was raised, else the innermost of all."""
    if isinstance(value, SyntaxError) and value.filename:
        return value.filename, value.lineno or 0
    places = []
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [place for place in places if not _is_library(place[0])]
    return (own or places or [("", 0)])[-1]


def _is_library(file: str) -> bool:
    """Return True for packages, for what TensorFlow makes of a function for a graph, and for this folder."""
    made = "-packages/" in file or "__autograph_generated_file" in file
    ours = os.path.dirname(__file__)
    return made or file.startswith(("<frozen", os.path.dirname(os.__file__) + "/", ours + "/"))


def _write(path: str, record: "Dict[str, Any]") -> None:
    """Append a record in one write, so that no reader sees half of it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    file = os.open(path, flags, 0o600)
    try:
        os.write(file, (_json(record) + "\n").encode("ascii"))
    finally:
        os.close(file)


def _json(value: "Any") -> str:
    """Write JSON without the module: a program may have a `json.py` of its own."""
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
