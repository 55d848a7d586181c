"""A process that is never the same for long: fork, let the parent go, in a new session each time."""

import os
import signal
import time

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("going", flush=True)
    if os.fork():
        while True:
            time.sleep(600)
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
