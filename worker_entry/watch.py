"""A small process beside a task that is meeting its peers; says who is missing when the time is up.

A process and not a thread: while the strategy is made, TensorFlow holds the interpreter's lock, and no
Python of this task runs. It is started as a script, reads one JSON line {"seconds", "peers": {task: address},
"report"} and ends when its stdin is closed: the peers have met, or the task is gone.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping

OPEN = "it answers"
PATIENCE = 10.0  # seconds after which it is said who is being waited for


def look(address: str, timeout: float = 2.0) -> str:
    """What one attempt to reach a task's port finds: OPEN, or why not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except socket.gaierror:
        return f"{host} does not resolve"
    except TimeoutError:
        return "no answer: a firewall, or the machine is down"
    except ConnectionRefusedError:
        return "nothing listens there: the task never started, or it ended"
    except OSError as error:
        return error.strerror or str(error)
    return OPEN


def complaint(seconds: float, peers: Mapping[str, str], found: Mapping[str, str]) -> tuple[str, str]:
    """The error (what, and its whole text) when the cluster has not formed in time."""
    silent = [task for task in peers if found[task] != OPEN]
    if not silent:
        what = f"the cluster did not form within {seconds:g} s, though every task's port answers"
        return what, (
            f"error: {what}\n"
            "  why: the tasks do not agree on who they are\n"
            "  try: the same TF_CONFIG cluster (same order) and the same TensorFlow on every task"
        )
    names = ", ".join(f"{task} ({peers[task]})" for task in silent[:5])
    more = f" and {len(silent) - 5} more" if len(silent) > 5 else ""
    what = f"{names}{more} did not come within {seconds:g} s"
    return what, (
        f"error: {what}\n  why: {found[silent[0]]}\n"
        "  try: look at that task's own output; --start-timeout waits longer"
    )


def look_at_all(peers: Mapping[str, str], wait: float = 3.0) -> dict[str, str]:
    """What is found at each task's address; all at once and bounded, for a name server may be slow."""
    found = dict.fromkeys(peers, "its name took too long to resolve")

    def ask(task: str, address: str) -> None:
        found[task] = look(address)

    askers = [threading.Thread(target=ask, args=peer, daemon=True) for peer in peers.items()]
    for asker in askers:
        asker.start()
    deadline = time.monotonic() + wait
    for asker in askers:
        asker.join(max(0, deadline - time.monotonic()))
    return dict(found)


def watch(
    seconds: float,
    over: Callable[[float], bool],
    look_around: Callable[[], Mapping[str, str]],
    say: Callable[[str], None],
) -> Mapping[str, str] | None:
    """None when `over` (it waits so long, then answers) was true in time, else what was found at the end."""
    early = min(PATIENCE, seconds / 2)
    if over(early):
        return None
    silent = [task for task, what in look_around().items() if what != OPEN]
    if silent:
        say(f"waiting up to {seconds:g} s for {', '.join(silent)}")
    return None if over(seconds - early) else look_around()


def _stdin_closed(wait: float) -> bool:
    ready, _, _ = select.select([0], [], [], wait)
    return bool(ready) and not os.read(0, 1)


def main() -> None:
    order = json.loads(sys.stdin.readline())
    seconds, peers = order["seconds"], order["peers"]
    found = watch(
        seconds,
        _stdin_closed,
        lambda: look_at_all(peers),
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    if found is None:
        return
    what, text = complaint(seconds, peers, found)
    if order["report"]:
        with open(order["report"], "a", encoding="utf-8") as report:  # noqa: PTH123
            report.write(json.dumps({"kind": "error", "message": what}) + "\n")
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
