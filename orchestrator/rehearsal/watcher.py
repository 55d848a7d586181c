"""Keeps the embedded cluster's sshd's, and sees to it that they end with the controller.

Run as a file of its own, standard library only. It is a child subreaper, so that everything the
cluster's "hosts" ever start stays below it. Its stdin is a pipe from the controller: whenever that
closes, also because the controller was killed, every descendant is killed and the folder removed.

stdin: one JSON line {"folder": PATH, "commands": [[ARGV], ...]}, then a word when the controller ends as it
should; without that word what bears the folder in its environment, a keeper, is killed too. stdout: "ready".
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "ORCHESTRATE_REHEARSAL"  # its folder, in the environment of what a rehearsal starts here
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    # A terminal's Ctrl-C and its end are for the controller to answer.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # As init does on a machine: no zombies gather.
    signal.signal(signal.SIGCHLD, lambda *_: children_left())
    order = json.loads(sys.stdin.buffer.readline())
    try:
        for argv in order["commands"]:
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if not sys.stdin.buffer.read():
            kill_keepers(order["folder"])
    finally:
        end(order["folder"])


def kill_keepers(folder: str) -> None:
    """Kill the keepers that a controller which is gone has left: their hosts are about to go."""
    for entry in Path("/proc").iterdir():
        try:
            if f"{MARK}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


def end(folder: str) -> None:
    """Kill what is below us until nothing is, then remove the folder."""
    while True:
        below = descendants()
        if not below and not children_left():
            break
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)
    shutil.rmtree(folder, ignore_errors=True)


def children_left() -> bool:
    """Collect the dead; whether a living or dying child remains."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def descendants() -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state not in (b"Z", b"X"):
                parents[int(entry.name)] = int(parent)
    found, me = [], os.getpid()
    for pid in parents:
        above = pid
        while above in parents and above != me:
            above = parents[above]
        if above == me and pid != me:
            found.append(pid)
    return found


if __name__ == "__main__":
    main()
