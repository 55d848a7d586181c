"""Runs the embedded cluster's sshd's, and makes sure that they end with the controller.

It is a separate process that imports our node's modules only. As a child subreaper it is the ancestor of
everything that the cluster's "hosts" ever start. Its stdin is a pipe from the controller: when that closes,
even because the controller was killed, every descendant is killed and the folder removed.

stdin: one JSON line {"folder": PATH, "commands": [[ARGV], ...]}, then a line when the controller ends
normally; without that line everything with the folder in its environment, such as a keeper, is killed too.
stdout: "ready".
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.node.base import procs

MARK = "ORCHESTRATE_REHEARSAL"  # its folder, in the environment of what a rehearsal starts here


def main() -> None:
    # The controller handles a terminal's Ctrl-C and hangup.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    procs.adopt_orphans()
    signal.signal(signal.SIGCHLD, lambda *_: procs.reap())  # as init does on a machine: no zombies accumulate
    order = json.loads(sys.stdin.buffer.readline())
    try:
        for argv in order["commands"]:
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if not sys.stdin.buffer.read():
            kill_keepers(order["folder"])
    finally:
        while procs.signal_all(signal.SIGKILL) or procs.reap()[1]:
            time.sleep(0.005)
        shutil.rmtree(order["folder"], ignore_errors=True)


def kill_keepers(folder: str) -> None:
    """Kill the keepers that a controller left behind: their hosts are about to go."""
    for entry in Path("/proc").iterdir():
        try:
            if f"{MARK}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


if __name__ == "__main__":
    main()
