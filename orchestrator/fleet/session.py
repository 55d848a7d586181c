"""A conversation with one agent: requests with replies, and frames that come unasked."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.node import bootstrap, frames
from orchestrator.transport import Channel, Link

MARKER_TIMEOUT = 20.0  # seconds a login may take until our agent answers: heavy rc files, loaded machines
AGENT_IDLE = 120.0  # seconds without a word from us after which an agent leaves
_NOISE_LIMIT = 65_536
_READ = 262_144


class Cancelled(Exception):  # noqa: N818 - not an error: the user asked for it
    """What was waited for is no longer wanted."""


@dataclass(frozen=True)
class Reply:
    result: dict[str, Any]
    payload: bytes = b""


@dataclass(frozen=True)
class Frame:
    """A frame that answers no request: log bytes, a state, a heartbeat; `lost` ends the session."""

    host: str
    session: Session
    header: dict[str, Any]
    payload: bytes = b""
    lost: str | None = None


Sink = Callable[[Frame], None]


class Session:
    """One agent at the far end of one link.

    `submit` returns at once; the future ends in a `Reply`, a HostError or `Cancelled`. Frames that
    answer no request go to the sink, from the session's reader thread.
    """

    def __init__(self, host: Host, link: Link, sink: Sink) -> None:
        self.host = host
        self.link = link
        self.hello: dict[str, Any] = {}
        self.clock_offset = 0.0  # node's clock minus ours, seconds
        self.heard = time.monotonic()
        self._sink = sink
        self._lock = threading.Lock()  # held for moments only: a stop must get through while a send hangs
        self._sending = threading.Lock()
        self._pending: dict[int, Future[Reply]] = {}
        self._last_id = 0
        self._ended: str | None = None
        self._closing = False
        self._greeted: Future[Reply] = Future()
        self._channel: Channel | None = None

    def start(self, timeout: float = MARKER_TIMEOUT) -> None:
        """Start the agent and wait for its hello; raise HostError when none comes."""
        began = time.time()
        self._channel = channel = self.link.open(bootstrap.argv(self.host.agent_python))
        threading.Thread(
            target=self._read, args=(channel,), name=f"read {self.host.name}", daemon=True
        ).start()
        try:
            channel.send(bootstrap.payload({"state": self.host.state, "idle": AGENT_IDLE}))
        except HostError:
            if not self._greeted.done():  # why it is gone is told by what it printed
                with contextlib.suppress(FutureTimeoutError):
                    self._greeted.result(timeout)
                raise
        try:
            self.hello = self._greeted.result(timeout).result
        except FutureTimeoutError:
            self.close()
            raise self._no_agent(f"no answer from our agent within {timeout:.0f} s", None) from None
        # The hello was stamped when the agent was up, which is close to now, not to the beginning.
        now = time.time()
        self.clock_offset = self.hello["time_ns"] / 1e9 - now
        if abs(self.clock_offset) <= now - began:
            self.clock_offset = 0.0

    def submit(self, op: str, /, payload: bytes = b"", **fields: Any) -> Future[Reply]:
        future: Future[Reply] = Future()
        with self._lock:
            if self._ended is not None:
                future.set_exception(self._lost_error(self._ended))
                return future
            self._last_id += 1
            number = self._last_id
            self._pending[number] = future
        assert self._channel is not None
        data = frames.encode({"id": number, "op": op, **fields}, payload)
        try:
            with self._sending:
                self._channel.send(data)
        except HostError as error:
            with self._lock:
                self._pending.pop(number, None)
            settle(future, error=error)
        return future

    def speak(self) -> None:
        """Let the agent hear from us, unless something is on its way to it anyway."""
        if not self._sending.locked():
            self.submit("ping")

    def request(self, op: str, /, payload: bytes = b"", timeout: float = 60.0, **fields: Any) -> Reply:
        """Ask and wait; raise HostError (kind "timeout" when no answer came), or `Cancelled`."""
        return self.wait(self.submit(op, payload, **fields), op, timeout)

    def wait(self, future: Future[Reply], op: str, timeout: float) -> Reply:
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            raise HostError(
                self.host.name,
                f"gave no answer to `{op}` within {timeout:.0f} s",
                kind="timeout",
                why="the machine or its disk hangs, or the network does",
                hint=f"ssh {self.host.ssh}, and look at its load and at `dmesg`",
            ) from None

    def cancel(self) -> None:
        """Give up every answer that is still awaited."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for future in pending.values():
            settle(future, error=Cancelled())

    def give_up(self, why: str) -> None:
        """End a session whose far end hangs: what is awaited fails at once, and the sink hears of it."""
        self._finish(why)
        self.link.close()

    def close(self) -> None:
        self._closing = True
        # The link first: on one that hangs, closing the channel would wait for the far end.
        self.link.close()
        if self._channel is not None:
            self._channel.close()

    @property
    def alive(self) -> bool:
        return self._ended is None

    def _read(self, channel: Channel) -> None:
        noise = b""
        decoder: frames.Decoder | None = None
        why = "the connection was closed"
        while data := channel.recv(_READ):
            self.heard = time.monotonic()
            if decoder is None:
                noise += data
                before, marker, after = noise.partition(frames.MARKER)
                if not marker:
                    noise = noise[-_NOISE_LIMIT:]
                    continue
                decoder, noise, data = frames.Decoder(), before, after
            try:
                for header, payload in decoder.feed(data):
                    self._dispatch(header, payload)
            except (ValueError, KeyError, TypeError) as error:
                why = f"the far end does not speak our protocol ({error!r})"
                break
        self._end(channel, noise, why)

    def _dispatch(self, header: dict[str, Any], payload: bytes) -> None:
        if "hello" in header:
            self._greeted.set_result(Reply(header["hello"]))
        elif "id" in header:
            with self._lock:
                future = self._pending.pop(header["id"], None)
            if future is None:  # given up meanwhile
                return
            if header["ok"]:
                settle(future, Reply(header["result"], payload))
            else:
                error = header["error"]
                settle(
                    future,
                    error=HostError(
                        self.host.name,
                        error["what"],
                        kind=error["kind"],
                        why=error.get("why", ""),
                        hint=error.get("hint", ""),
                    ),
                )
        else:
            self._sink(Frame(self.host.name, self, header, payload))

    def _end(self, channel: Channel, noise: bytes, why: str) -> None:
        if not self._greeted.done():
            status = channel.wait(2.0)
            self._greeted.set_exception(self._no_agent(_said(noise, channel.stderr_tail()), status))
        self._finish(why)

    def _finish(self, why: str) -> None:
        """The session is over, once."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = why
            pending, self._pending = self._pending, {}
        for future in pending.values():
            settle(future, error=self._lost_error(why))
        if self.hello and not self._closing:
            self._sink(Frame(self.host.name, self, {}, lost=why))

    def _lost_error(self, why: str) -> HostError:
        return HostError(
            self.host.name,
            "was lost",
            kind="lost",
            why=why,
            hint=f"ssh {self.host.ssh}, to see whether the machine still answers",
        )

    def _no_agent(self, said: str, status: int | None) -> HostError:
        python = self.host.agent_python
        if status == 127 or "not found" in said or "No such file" in said:
            return HostError(
                self.host.name,
                f"has no {python}",
                kind="no-python",
                why=said or f"the login shell ended with status {status}",
                hint="install python3 (3.8 or newer), or set `agent_python` in hosts.toml",
            )
        if "SyntaxError" in said or "unknown option -I" in said.lower() or "Unknown option: -I" in said:
            return HostError(
                self.host.name,
                f"has a {python} older than 3.8",
                kind="old-python",
                why=said,
                hint="set `agent_python` in hosts.toml to a Python of 3.8 or newer",
            )
        return HostError(
            self.host.name,
            "logs in, but does not run our agent",
            kind="no-agent",
            why=said or f"the login ended with status {status} and printed nothing",
            hint="a ForceCommand, a nologin shell or a start-up file that is slow or waits does this; "
            f"try: ssh {self.host.ssh} {python} -V",
        )


def settle(future: Future[Any], outcome: object = None, error: BaseException | None = None) -> bool:
    """End a future; False when somebody else, a cancel for instance, was faster."""
    try:
        if error is None:
            future.set_result(outcome)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return False
    return True


def _said(noise: bytes, stderr: bytes) -> str:
    """What the login printed, as one short text."""
    text = b" / ".join(part.strip() for part in (stderr, noise) if part.strip())
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    shown = "".join(char if char.isprintable() else "?" for char in " / ".join(lines[-4:]))
    return f'the login printed "{shown[-400:]}"' if shown else ""
