"""Making external text harmless for a terminal, and formatting numbers. Pure, except for a lock."""

import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

# Held to read text as a type: msgspec (0.22) dies of SIGSEGV if two threads meet a type at once.
READING = threading.Lock()

# Non-printable parts of a task's output. Colors are kept, other escape sequences are dropped, and single
# control characters are made visible. The body of a string sequence ends at any introducer, so a hostile
# line takes one pass instead of one per introducer.
#
# Invisible characters are kept only where an emoji or a script needs them: anywhere else they can hide
# text, or make one name look like another.
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_JOINERS = "\u200c\u200d"
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    f"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff{_SELECTORS}{_JOINERS}"
)
_SEEN = f"[^\\x00-\\xff{_INVISIBLE}]"
_SINGLE = f"\x00-\x08\n-\x1f\x7f-\x9f{_INVISIBLE}"
_ODD = (
    r"(?P<colour>\x1b\[[0-9;:]{0,64}m)"
    r"|(?P<sequence>"
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~])"
    # After a visible character: one selector, and one joiner between two of them.
    f"|(?P<kept>(?<={_SEEN})(?:[{_SELECTORS}]?[{_JOINERS}](?={_SEEN})|[{_SELECTORS}]))"
    f"|[{_SINGLE}]"
)
_ANY_ODD = re.compile(f"[{_SINGLE}]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")

# Linux names: the nodes run Linux, the controller may not.
_SIGNALS = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP "
    "TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
_MOST_SIGNALS = 64  # including real-time signals, which have no names


def harmless(text: str) -> str:
    """Return the text with color sequences unchanged and all other controls removed or made visible.

    Each ESC in the result begins a complete color sequence; tabs remain; there is no newline.
    """
    if (text.isascii() and text.isprintable()) or not _ANY_ODD.search(text):  # the first one is faster
        return text
    return re.sub(_ODD, _shown, text)  # compiled on demand: 1.3 ms of every start


def some(names: Sequence[str], most: int) -> str:
    """Return the first of many names and the number of the others: `a, b and 7 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def plain(text: str) -> str:
    """Return the text without colors and escapes, harmless for any output."""
    return _COLOUR.sub("", harmless(text))


def _shown(match: re.Match[str]) -> str:
    control = match.group()
    if match.lastgroup in {"colour", "kept"}:
        return control
    if match.lastgroup == "sequence":
        return ""
    code = ord(control)
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode symbols for control characters
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"


def advised(who: str, hint: str) -> str:
    """Return a suggestion marked as coming from a source we do not vouch for; "" for none."""
    return f"{who} advises: {hint.strip()}" if hint.strip() else ""


def json_safe(line: bytes) -> bytes:
    """Return an equivalent line of JSON with every unusual character of its texts escaped."""
    if line.isascii() and b"\x7f" not in line:
        return line
    return _ANY_ODD.sub(_escaped, line.decode()).encode()


def _escaped(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def json_of(value: object) -> bytes:
    """Return the value as JSON, with invalid UTF-8 (bytes of a file name, for example) as escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_utf8(msgspec.to_builtins(value)))


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_utf8(key): _utf8(entry) for key, entry in value.items()}
    return [_utf8(entry) for entry in value] if isinstance(value, list | tuple) else value


def moment(form: str, seconds: float) -> str:
    """Return local time in `strftime` format; `seconds` since the epoch may be any number."""
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "at an impossible time"


def cut(text: str, most: int) -> str:
    """Return at most this many characters, with an ellipsis for the rest."""
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; numbers without a name stay numbers."""
    names = _SIGNALS.split()
    return f"SIG{names[number - 1]}" if 1 <= number <= len(names) else f"signal {number}"


def shell_signal(code: int | None) -> int:
    """Return 9 for 137, a shell's status for a child killed by SIGKILL; 0 for other statuses."""
    return code - 128 if code is not None and 128 < code <= 128 + _MOST_SIGNALS else 0


def endpoint(host: str, port: int | str | None) -> str:
    """Return `gpu-1:22` or `[fd00::1]:22`; the host alone without a port."""
    return f"[{host}]:{port}" if ":" in host and port else f"{host}:{port}" if port else host


def count(number: int, noun: str, plural: str = "") -> str:
    """Return `1 host`, `1,234 hosts`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Return `0.3 s`, `41 s`, `3 min 05 s`, `2 h 07 min`, or `3 d 04 h`."""
    seconds = min(max(seconds, 0.0), 1e11) if seconds == seconds else 0.0  # noqa: PLR0124 - it may be NaN
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02} h"


def size(number: float) -> str:
    """Return `812 B`, `1.5 kB`, `120 GB`: decimal units, as on disk labels and in `df -H`."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 9.95 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
