"""At TERM it saves, in so many seconds, unless it has lost its worker, and exits as it likes."""

import os
import signal
import sys
import time
from pathlib import Path


def save(*_: object) -> None:
    print("saves", flush=True)
    time.sleep(float((sys.argv[1:] or ["0"])[0]))
    if WORKER and os.waitpid(WORKER, os.WNOHANG) != (0, 0):
        sys.exit("its worker is gone")
    print("saved", flush=True)
    sys.exit(42)


def work() -> int:
    """Start what the DataLoader of PyTorch starts."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        Path("/proc/self/comm").write_text("pt_data_worker")
        print("up", flush=True)
        time.sleep(600)
    return pid


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, save)
    WORKER = work() if "worker" in sys.argv else 0
    if not WORKER:
        print("up", flush=True)
    while True:
        time.sleep(600)
