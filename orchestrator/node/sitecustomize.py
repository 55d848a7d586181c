"""Has the stacks of a Python process written out on a signal; found first on the PYTHONPATH of a task.

It runs in every Python of a task, of any version, before the program. It steps aside for the
`sitecustomize` that would have been found without it, whose mistakes stay its own, and says nothing
of itself. The dump goes to a file without a name that this process alone holds: whoever finds it open
(/proc/PID/fd) knows that the signal is expected here, and kills nobody with it.
"""

# ruff: noqa: ANN001, ANN201 - a Python too old for annotations has to read it, too

import sys


def step_aside():  # type: () -> None
    """Import the one that comes after us; `site` judges its exceptions as ever."""
    here = __file__.rpartition("/")[0]
    sys.path[:] = [folder for folder in sys.path if folder != here]
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


def is_free(signum):  # type: (int) -> bool
    """Whether the signal is nobody's; `signal` would not tell of handlers in C."""
    with open("/proc/self/status") as status:
        lines = [line.split() for line in status if line.startswith(("SigIgn:", "SigCgt:"))]
    return not any(int(words[1], 16) >> (signum - 1) & 1 for words in lines)


def register():  # type: () -> None
    import faulthandler
    import os

    signum, _, path = os.environ["ORCHESTRATE_STACKS"].partition(":")
    if is_free(int(signum)):
        path = "%s.%d" % (path, os.getpid())
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0)
        file = os.open(path, flags, 0o600)
        os.unlink(path)
        faulthandler.register(int(signum), file=file, all_threads=True)


if __name__ == "sitecustomize":
    try:
        step_aside()
    finally:
        try:
            register()
        except Exception:
            pass  # a full disk, no faulthandler: the task goes on without
