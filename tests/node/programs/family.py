"""A task with every kind of relative; each writes its pid into pids/ and lives until it is killed.

child, ignores TERM | setsid grandchild | double-forked and ignores TERM | the same without environment
"""

import os
import signal
import sys
import time
from pathlib import Path

SLEEP = "import os, time; open(f'pids/{os.getpid()}', 'w').close(); time.sleep(600)"


def born() -> None:
    Path("pids").mkdir(exist_ok=True)
    Path("pids", str(os.getpid())).touch()


def deaf() -> None:
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)


def live() -> None:
    born()
    while True:
        time.sleep(600)


def fork(*steps: object) -> None:
    if os.fork() == 0:
        for step in steps:
            step()  # type: ignore[operator]
        os._exit(0)


def again() -> None:
    """Fork and let the parent go; it is gone before its child says that it is there."""
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.001)


def bare() -> None:
    """The same life in a process without the cookie, which says that it is there when it has lost that."""
    Path("pids").mkdir(exist_ok=True)
    os.execve(sys.executable, [sys.executable, "-c", SLEEP], {})


if __name__ == "__main__":
    fork(deaf, live)
    fork(os.setsid, live)
    fork(os.setsid, again, deaf, live)
    fork(os.setsid, again, deaf, bare)
    if "ends" in sys.argv:
        while not Path("pids").is_dir() or len(list(Path("pids").iterdir())) < 4:
            time.sleep(0.01)
        print("leader ends", flush=True)
        sys.exit(int(sys.argv[-1]))
    if "deaf" in sys.argv:
        deaf()
    live()
