"""Text from elsewhere made harmless for a terminal, and the few ways in which we word numbers. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

# What may be in a task's output beside printable text. Colours are kept, other escape sequences are
# dropped, single controls are made visible. The body of a string sequence stops at any introducer, so
# that a hostile line costs one pass and not one per introducer.
#
# Characters that cannot be seen are kept where an emoji or a script needs them, and nowhere else: what is
# not seen can hide a text, or make one name look like another.
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
    # Behind what can be seen: one selector, and one joiner between two such.
    f"|(?P<kept>(?<={_SEEN})(?:[{_SELECTORS}]?[{_JOINERS}](?={_SEEN})|[{_SELECTORS}]))"
    f"|[{_SINGLE}]"
)
_ANY_ODD = re.compile(f"[{_SINGLE}]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")

# The names of Linux: the nodes run it, the controller may not.
_SIGNALS = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP "
    "TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
_MOST_SIGNALS = 64  # with those for real-time, which have no names


def harmless(text: str) -> str:
    """The text with colour sequences as they are and every other control removed or made visible.

    Each ESC in the result begins a complete colour sequence; tabs stay; there is no newline.
    """
    if (text.isascii() and text.isprintable()) or not _ANY_ODD.search(text):  # the first is faster
        return text
    return re.sub(_ODD, _shown, text)  # compiled when something is odd: 1.3 ms of every start


def some(names: Sequence[str], most: int) -> str:
    """The first of many names, and how many there are beside them: `a, b and 7 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def plain(text: str) -> str:
    """The text for a place without colours: harmless, and no escape at all."""
    return _COLOUR.sub("", harmless(text))


def _shown(match: re.Match[str]) -> str:
    found = match.group()
    if match.lastgroup in {"colour", "kept"}:
        return found
    if match.lastgroup == "sequence":
        return ""
    code = ord(found)
    if code < 0x20:
        return chr(0x2400 + code)  # the Unicode pictures of control characters
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"


def advised(who: str, hint: str) -> str:
    """Word what to try as the advice of somebody for whom we do not answer; "" for nothing."""
    return f"{who} advises: {hint.strip()}" if hint.strip() else ""


def json_safe(line: bytes) -> bytes:
    """A line of JSON that says the same, with every odd character of its texts as an escape."""
    if line.isascii() and b"\x7f" not in line:
        return line
    return _ANY_ODD.sub(_escaped, line.decode()).encode()


def _escaped(match: re.Match[str]) -> str:
    words = match.group().encode("utf-16-be")
    return "".join(f"\\u{words[at]:02x}{words[at + 1]:02x}" for at in range(0, len(words), 2))


def utf8(value: Any) -> Any:
    """Return the data with what is no UTF-8 (bytes of a file's name, say) replaced by escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {utf8(key): utf8(entry) for key, entry in value.items()}
    return [utf8(entry) for entry in value] if isinstance(value, list | tuple) else value


def moment(form: str, seconds: float) -> str:
    """Local time in `strftime`'s words; `seconds` since the epoch may be anything."""
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "at no time that there is"


def cut(text: str, most: int) -> str:
    """At most so many characters of it, with an ellipsis for the others."""
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; numbers without a name stay numbers."""
    names = _SIGNALS.split()
    return f"SIG{names[number - 1]}" if 1 <= number <= len(names) else f"signal {number}"


def shell_signal(code: int | None) -> int:
    """9 for 137, which is how a shell tells that SIGKILL ended its child; 0 for a status that tells none."""
    return code - 128 if code is not None and 128 < code <= 128 + _MOST_SIGNALS else 0


def endpoint(host: str, port: int | str | None) -> str:
    """`gpu-1:22`, `[fd00::1]:22`; the host as it is without a port."""
    return f"[{host}]:{port}" if ":" in host and port else f"{host}:{port}" if port else host


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 host`, `1,234 hosts`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """`0.3 s`, `41 s`, `3 min 05 s`, `2 h 07 min`, `3 d 04 h`."""
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
    """`812 B`, `1.5 kB`, `120 GB`: decimal units, as disks are sold and `df -H` shows."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 9.95 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
