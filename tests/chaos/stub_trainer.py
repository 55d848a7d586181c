"""A trainer that behaves like TensorFlow under MultiWorkerMirroredStrategy, and starts in 50 ms.

    stub_trainer.py --steps N [--step-seconds S] [--heartbeat S] [--checkpoint-dir DIR]

Reads TF_CONFIG (without one it trains alone), binds its port, meets its peers, and then makes steps in
which all wait for all. Once they have met it ignores TERM. A peer whose socket closes ends it with
UnavailableError; one that is silent for longer than the heartbeat does too, and with `--heartbeat 0` it
waits forever. SIGUSR1: it eats memory.

With a checkpoint folder each task saves every tenth step, and all resume after the last step that all of them
have. Progress goes to ORCHESTRATE_REPORT as worker_entry's does. Standard library only.
"""

import argparse
import contextlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

SAVE_EVERY = 10
REPORT_EVERY = 0.1  # seconds
ATTEMPT = os.environ.get("ORCHESTRATE_ATTEMPT", "1")  # or "validate"
CALLS_AGAIN = 0.5  # seconds
ALONE = '{"cluster": {"worker": [":0"]}, "task": {"index": 0}}'  # in a local validation


class UnavailableError(Exception):
    """A peer is gone: worded as TensorFlow 2.21 does."""


def closed(peer: int) -> UnavailableError:
    return UnavailableError(
        "Graph execution error:\n\nDetected at node CollectiveReduceV2\n"
        "Collective ops is aborted by: Socket closed\n"
        "Additional GRPC error information from remote target "
        f"/job:worker/replica:0/task:{peer} while calling /tensorflow.WorkerService/RecvBuf:\n"
        ':UNKNOWN:Error received from peer  {grpc_message:"Connection reset by peer", grpc_status:14}'
    )


def silent(peer: int) -> UnavailableError:
    return UnavailableError(
        "Graph execution error:\n\nDetected at node CollectiveReduceV2\n"
        f"Collective ops is aborted by: Error reported from /job:worker/task:{peer}: "
        "The following tasks are unhealthy (stopped sending heartbeats):\n"
        f"/job:worker/replica:0/task:{peer}\n"
        "The tasks have crashed. Check the task logs for an earlier error"
    )


def mismatch(peer: int) -> RuntimeError:
    """A task of another attempt talks to us: the coordinator takes it for a restarted one of ours."""
    return RuntimeError(
        f"/job:worker/replica:0/task:{peer} unexpectedly tried to connect with a different incarnation. "
        "It has likely restarted. Incarnation ID mismatch"
    )


class Gang:
    """The sockets to all peers, and the last step that each has said to have reached."""

    def __init__(self, addresses: list[str], me: int, begin: int, heartbeat: float) -> None:
        self._me = me
        self._heartbeat = heartbeat
        self._peers: dict[int, socket.socket] = {}
        self._buffers: dict[int, bytes] = {}
        self._gone: set[int] = set()
        self.reached: dict[int, int] = {}
        self.begin = begin  # the step after which all begin
        self._heard: dict[int, float] = {}
        self._said = 0.0
        self._deadline = time.monotonic() + 3 * heartbeat if heartbeat else None
        self._meet(addresses)

    def _meet(self, addresses: list[str]) -> None:
        """Connect to those before us and be connected to by those behind us."""
        port = int(addresses[self._me].rpartition(":")[2])
        server = socket.create_server(("", port), backlog=64)
        self._addresses = addresses
        self._hello = hello = self._words(self.begin)
        for peer in range(self._me):
            host, _, number = addresses[peer].rpartition(":")
            self._peers[peer] = self._reach(peer, host, int(number))
            self._peers[peer].sendall(hello)
        known = list(self._peers)
        server.settimeout(0.5)
        while missing := set(range(len(addresses))) - {*self._peers, self._me}:
            self._look_at_the_clock(min(missing))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            connection.settimeout(self._heartbeat or None)
            try:
                greeting = self._greeting(connection)
            except OSError:
                connection.close()
                continue
            self._know(greeting)
            self._peers[greeting["task"]] = connection
            self.begin = min(self.begin, greeting["step"])
            connection.sendall(hello)
        for peer in known:
            self._peers[peer].settimeout(self._heartbeat or None)
            try:
                greeting = self._greeting(self._peers[peer])
            except TimeoutError:
                raise silent(peer) from None
            except OSError:
                raise closed(peer) from None
            self.begin = min(self.begin, greeting["step"])
        now = time.monotonic()
        for peer, connection in self._peers.items():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._buffers[peer], self.reached[peer], self._heard[peer] = b"", -1, now
        self._server = server
        server.setblocking(False)
        self._strangers: list[socket.socket] = []

    def _words(self, step: int) -> bytes:
        greeting = {"task": self._me, "step": step, "attempt": ATTEMPT}
        return json.dumps(greeting).encode() + b"\n"

    @staticmethod
    def _know(said: dict[str, Any]) -> None:
        if said["attempt"] != ATTEMPT:
            raise mismatch(said["task"])

    def _listen(self) -> None:
        """Whoever calls now is none of us: as a coordinator hears of a task that it knows otherwise."""
        with contextlib.suppress(BlockingIOError):
            stranger, _ = self._server.accept()
            stranger.setblocking(False)
            self._strangers.append(stranger)
        for stranger in list(self._strangers):
            try:
                data = stranger.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if data.endswith(b"\n"):
                self._know(json.loads(data))
            stranger.close()
            self._strangers.remove(stranger)

    def call_again(self) -> None:
        """A peer is gone: TensorFlow's heartbeats go to its address still, for some seconds."""
        deadline = time.monotonic() + CALLS_AGAIN
        while time.monotonic() < deadline:
            for peer, address in enumerate(self._addresses):
                host, _, number = address.rpartition(":")
                if peer != self._me:
                    with (
                        contextlib.suppress(OSError),
                        socket.create_connection((host, int(number)), timeout=0.3) as connection,
                    ):
                        connection.sendall(self._hello)
            time.sleep(0.1)

    def _look_at_the_clock(self, peer: int) -> None:
        """The time in which all must have registered."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise silent(peer)

    def _reach(self, peer: int, host: str, port: int) -> socket.socket:
        """A peer that has not started yet refuses: it is waited for, as in TensorFlow."""
        while True:
            self._look_at_the_clock(peer)
            try:
                return socket.create_connection((host, port), timeout=2.0)
            except OSError:
                time.sleep(0.05)

    @staticmethod
    def _greeting(connection: socket.socket) -> dict[str, Any]:
        data = b""
        while not data.endswith(b"\n"):
            more = connection.recv(1)
            if not more:
                raise ConnectionResetError
            data += more
        found: dict[str, Any] = json.loads(data)
        return found

    def reduce(self, step: int) -> None:
        """Say that we have reached a step, and wait until all have."""
        self._say(b"%d\n" % step)
        with selectors.DefaultSelector() as selector:
            for peer, connection in self._peers.items():
                if peer not in self._gone:
                    selector.register(connection, selectors.EVENT_READ, peer)
            while any(at < step for at in self.reached.values()):
                for key, _ in selector.select(self._heartbeat / 4 if self._heartbeat else 0.5):
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                        self._gone.add(key.data)
                self._listen()
                self._judge(step)

    def _hear(self, peer: int) -> bool:
        try:
            data = self._peers[peer].recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            return False
        self._heard[peer] = time.monotonic()
        *lines, self._buffers[peer] = (self._buffers[peer] + data).split(b"\n")
        for line in lines:
            if line != b"h":
                self.reached[peer] = max(self.reached[peer], int(line))
        return True

    def _judge(self, step: int) -> None:
        """Raise for a peer that is gone before this step; send a heartbeat when one is due."""
        now = time.monotonic()
        for peer, at in self.reached.items():
            if at >= step:
                continue
            if peer in self._gone:
                raise closed(peer)
            if self._heartbeat and now - self._heard[peer] > self._heartbeat:
                raise silent(peer)
        if self._heartbeat and now - self._said > self._heartbeat / 5:
            self._say(b"h\n")

    def _say(self, data: bytes) -> None:
        self._said = time.monotonic()
        for peer, connection in self._peers.items():
            if peer not in self._gone:
                try:
                    connection.send(data)
                except BlockingIOError:
                    pass  # a peer that reads nothing: its own silence tells
                except OSError:
                    pass  # told by reading from it


class Report:
    def __init__(self) -> None:
        self._path = os.environ.get("ORCHESTRATE_REPORT")
        self._next = 0.0

    def write(self, **record: object) -> None:
        if self._path:
            try:
                with Path(self._path).open("a") as file:
                    file.write(json.dumps(record) + "\n")
            except OSError as error:
                print(f"report not written: {error}", flush=True)

    def progress(self, step: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REPORT_EVERY
            self.write(kind="progress", step=step, loss=1.0 / step, steps_per_second=None)


class Checkpoint:
    """The last step that was saved, in a file per task; without a folder nothing is kept."""

    def __init__(self, folder: str | None, task: str) -> None:
        self._path = Path(folder) / f"{task}.json" if folder else None

    def load(self) -> int:
        if self._path is None or not self._path.exists():
            return 0
        return int(json.loads(self._path.read_text())["step"])

    def save(self, step: int) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".next")
            beside.write_text(json.dumps({"step": step}))
            beside.replace(self._path)


def eat() -> None:
    """More and more memory, touched, until something ends it."""
    eaten = []
    while True:
        eaten.append(b"x" * (1 << 20))
        time.sleep(0.001)


def babble(step: int, chance: random.Random) -> None:
    """Output of every shape: whole lines, redraws, half lines, bytes that are no UTF-8."""
    out = sys.stdout.buffer
    out.write(
        b"step %d " % step + b"." * chance.randrange(60) + chance.choice((b"\n", b"\n", b"\r", b"\xff"))
    )
    if chance.random() < 0.02:
        out.write(b"".join(b"line %d of a long word\n" % n for n in range(200)))
    out.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--heartbeat", type=float, default=30.0)
    parser.add_argument("--checkpoint-dir")
    options = parser.parse_args()
    config = json.loads(os.environ.get("TF_CONFIG", ALONE))
    addresses, me = config["cluster"]["worker"], config["task"]["index"]
    print(f"worker {me} of {len(addresses)}, attempt {ATTEMPT}", flush=True)

    signal.signal(signal.SIGUSR1, lambda *_: eat())
    report, checkpoint = Report(), Checkpoint(options.checkpoint_dir, f"worker-{me}")
    gang = Gang(addresses, me, checkpoint.load(), options.heartbeat)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report.write(kind="ready", note="stub")
    print(f"begins after step {gang.begin}", flush=True)
    chance = random.Random(me)
    for step in range(gang.begin + 1, options.steps + 1):
        time.sleep(options.step_seconds)
        try:
            gang.reduce(step)
        except UnavailableError:
            gang.call_again()
            raise
        babble(step, chance)
        report.progress(step)
        if step % SAVE_EVERY == 0:
            checkpoint.save(step)
    gang.reduce(options.steps + 1)  # nobody leaves before all have saved
    print(f"\ndone: {options.steps} steps", flush=True)
    report.write(kind="result", steps=options.steps, digest="stub")


if __name__ == "__main__":
    main()
