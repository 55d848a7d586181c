"""Questions to the user at the terminal."""

import getpass
import signal
import sys
import threading


def can_answer() -> bool:
    """Return True if a user is at a terminal."""
    return all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))


def agrees(question: str, *, usual: bool) -> bool:
    """Ask at the terminal; an empty answer means `usual`, and the end of input a Ctrl-C."""
    sys.stderr.write(f"{question} [{'Y/n' if usual else 'y/N'}] ")
    sys.stderr.flush()
    if not (answer := sys.stdin.readline()):
        raise KeyboardInterrupt
    return answer.strip().lower() in ({"y", "yes", ""} if usual else {"y", "yes"})


def passphrase(question: str) -> str:
    """Ask at the terminal; Ctrl-C and SIGTERM end the process there, even if they are counted for a run."""
    mine = threading.current_thread() is threading.main_thread()  # only the main thread may set a handler
    ends = (signal.SIGINT, signal.SIGTERM) if mine else ()
    before = {number: signal.signal(number, signal.default_int_handler) for number in ends}
    try:
        return getpass.getpass(question)
    except EOFError:  # Ctrl-D: an empty answer, as for `ssh`
        return ""
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
