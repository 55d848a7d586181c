"""Five bugs, each injected into the keeper as a careless change might; the simulator must find all."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from orchestrator.fleet import Session
from orchestrator.phases import prepare, stop
from orchestrator.phases.follow import Follower
from orchestrator.store.mirror import MirrorFile


def _lost_end() -> Any:
    """A task's end that arrives together with the loss of its host is forgotten."""
    real = Follower._end

    def end(self: Follower, exited: Any) -> None:
        if exited.lost and exited.task.endswith("/0"):
            self.ends[next(task for task in self.placed if str(task) == exited.task)] = exited
        else:
            real(self, exited)

    return mock.patch.object(Follower, "_end", end)


def _second_attempt() -> Any:
    """The next attempt starts without ending the last one or confirming that it is gone."""
    proof = mock.patch.object(prepare, "prove_free", return_value=None)
    return proof, mock.patch.object(stop, "end_all", return_value=None)


def _duplicated_byte() -> Any:
    """A resumed stream starts one byte too early, and is appended unchanged."""
    real = Follower.attach

    def add(self: MirrorFile, offset: int, data: bytes) -> None:
        self.expect(offset)
        self.append(data)

    def attach(self: Follower, hosts: Iterable[str] | None = None) -> None:
        logs = [mirror.log for mirror in self._mirrors.values() if mirror.log.size]
        for log in logs:
            log.size -= 1
        real(self, hosts)
        for log in logs:
            log.size += 1

    return mock.patch.object(MirrorFile, "add", add), mock.patch.object(Follower, "attach", attach)


def _forgotten_stop() -> Any:
    """Only the first host receives the request to stop its tasks."""

    def tell(stopper: stop.Stopper, session: Session) -> None:
        if session.host.name.endswith("0"):
            request = stop._request(stopper._run, stopper.by, stopper._grace, kill=stopper._killing)
            session.submit(request)

    return mock.patch.object(stop.Stopper, "_send", tell)


def _no_deadline() -> Any:
    """The keeper waits for a reply without a deadline."""

    def wait(self: Session, future: Future[Any], op: str, timeout: float) -> Any:
        del op, timeout
        return self.clock.result(future)

    return mock.patch.object(Session, "wait", wait)


# Each bug, and the problem that the checker reports.
BUGS: dict[str, tuple[Callable[[], Any], str]] = {
    "a lost end": (_lost_end, "its end was not reported"),
    "a second attempt": (_second_attempt, "two attempts at a time"),
    "a duplicated byte": (_duplicated_byte, "missing or duplicated"),
    "a forgotten stop": (_forgotten_stop, "is alive on"),
    "a wait without a deadline": (_no_deadline, "without a deadline"),
}


@contextmanager
def injected(name: str) -> Iterator[str]:
    """Inject a bug into the keeper; yield the problem that the checker reports."""
    patches, found = BUGS[name][0](), BUGS[name][1]
    with ExitStack() as stack:
        for one in patches if isinstance(patches, tuple) else (patches,):
            stack.enter_context(one)
        yield found
