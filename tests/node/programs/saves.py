"""At TERM it saves, in so many seconds, and exits as it likes."""

from __future__ import annotations

import signal
import sys
import time


def save(*_: object) -> None:
    print("saves", flush=True)
    time.sleep(float((sys.argv[1:] or ["0"])[0]))
    print("saved", flush=True)
    sys.exit(42)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, save)
    print("up", flush=True)
    while True:
        time.sleep(600)
