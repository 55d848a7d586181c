"""Text from elsewhere made harmless for a terminal, and the few ways in which we word numbers. Pure."""

from __future__ import annotations

import re

# What may be in a task's output beside printable text. Colours are kept, other escape sequences are
# dropped, single controls are made visible. The body of a string sequence stops at any introducer, so
# that a hostile line costs one pass and not one per introducer.
_ODD = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]{0,64}m)"
    r"|(?P<sequence>"
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~])"
    "|[\x00-\x08\n-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")

# The names of Linux: the nodes run it, the controller may not.
_SIGNALS = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP "
    "TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)


def harmless(text: str) -> str:
    """The text with colour sequences as they are and every other control removed or made visible.

    Each ESC in the result begins a complete colour sequence; tabs stay; there is no newline.
    """
    return text if text.isprintable() else _ODD.sub(_shown, text)


def plain(text: str) -> str:
    """The text for a place without colours: harmless, and no escape at all."""
    return text if text.isprintable() else _COLOUR.sub("", _ODD.sub(_shown, text))


def _shown(match: re.Match[str]) -> str:
    found = match.group()
    if match.lastgroup == "colour":
        return found
    if match.lastgroup == "sequence":
        return ""
    code = ord(found)
    if code < 0x20:
        return chr(0x2400 + code)  # the Unicode pictures of control characters
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; numbers without a name stay numbers."""
    names = _SIGNALS.split()
    return f"SIG{names[number - 1]}" if 1 <= number <= len(names) else f"signal {number}"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 host`, `1,234 hosts`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """`0.3 s`, `41 s`, `3 min 05 s`, `2 h 07 min`, `3 d 04 h`."""
    seconds = max(seconds, 0.0)
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
