"""Lost hosts: retried until they are back, whatever the run does meanwhile."""

import contextlib
import queue
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat

from orchestrator import wire
from orchestrator.errors import HostError, HostErrors, Trouble
from orchestrator.events import HostConnected, HostLost, HostRecovered, Loss
from orchestrator.fleet import Lost, Session, problems
from orchestrator.model import Host
from orchestrator.phases import connect
from orchestrator.phases.context import Run, log, unforeseen
from orchestrator.phases.loop import Reconnected, ViewerRequest
from orchestrator.run import restarts
from orchestrator.text import duration

_REPORTED = {
    Trouble.AUTH,
    Trouble.HOSTKEY_CHANGED,
    Trouble.HOSTKEY_REVOKED,
    Trouble.HOSTKEY_UNKNOWN,
    Trouble.HERE,
    Trouble.STATE,
}
_BACKOFF = (0.3, 0.7, 1.0, 2.0, 3.0, 5.0)  # seconds; the last one repeats


def lose(run: Run, name: str, why: str, *, pause: float = 0.0) -> None:
    """Drop a host's session and try to open another one.

    A new session arrives in the run's loop, as `Reconnected`.
    """
    if name in run.since_lost:
        return
    run.since_lost[name] = run.clock.now()
    log.warning("lost %s: %s", name, why)
    run.fleet.let_go(name)
    run.emit(HostLost(name, why))
    run.loop.after(pause + _BACKOFF[0], _Retry(run, run.plan.host(name)).begin)


class _Retry:
    """Attempts to open another session with a lost host, each in a thread, until it is back."""

    def __init__(self, run: Run, host: Host, *, is_spare: bool = False) -> None:
        self._run = run
        self._host = host
        self._is_spare = is_spare  # retried only while another host is lost
        self._pauses = chain(_BACKOFF[1:], repeat(_BACKOFF[-1]))
        self._shown = ""  # the problem that users have seen

    def begin(self) -> None:
        run, name = self._run, self._host.name
        if self._is_spare and not run.lost:
            run.since_lost.pop(name, None)
        if name not in run.since_lost:
            return
        try:
            run.clock.start(f"reconnect {name}", self._open)
        except OSError as error:
            log.warning("%s is not tried again yet: %s", name, error)
            run.loop.after(_BACKOFF[-1], self.begin)

    def _open(self) -> None:
        """Try once, and send the result to the loop: even after a bug, since the host is retried only then.

        A host that answers without its state folder, as after a disk failure, stays lost.
        """
        run = self._run
        try:
            session = run.fleet.open(self._host)
            try:
                session.request(wire.Keep(run=run.id, who=run.who, again=True))
            except HostError as error:
                if error.kind == Trouble.STATE or not session.alive:
                    session.close()
                    raise
            run.loop.put(Reconnected(session))
        except HostError as error:
            run.loop.post(partial(self._failed, error))
        except Exception as error:
            unforeseen(f"still lost: {self._host.name}", error)
            run.loop.post(partial(self._failed, None))

    def _failed(self, error: HostError | None) -> None:
        if error is not None:
            log.info("still lost: %s %s: %s", error.host, error.what, error.why)
            if error.kind in _REPORTED and error.in_one_line != self._shown:
                self._shown = error.in_one_line
                self._run.emit(HostLost(error.host, f"it {self._shown}"))  # it may be an attack
        self._run.loop.after(next(self._pauses), self.begin)


def regain(run: Run, session: Session) -> bool:
    """Take a new session with a lost host into the fleet; return False if it is no longer needed."""
    name = session.host.name
    since = run.since_lost.pop(name, None)
    if since is None:
        session.close()
        return False
    if name not in {host.name for host in run.hosts}:
        # Replaced meanwhile: what it still runs belongs to an attempt that is over.
        session.submit(wire.Stop(run=run.id, grace=0.0, kill=True, final=False))
    run.fleet.sessions[name] = session
    seconds = run.clock.now() - since
    spare = session.host.spare
    run.emit(HostConnected(name, seconds, session.clock_offset) if spare else HostRecovered(name, seconds))
    connect.keep_again(run, session)
    return True


def replaceable(run: Run) -> bool:
    """Return True if spares that respond can replace all lost hosts; connect to the others meanwhile.

    A response shows that this machine's own network works.
    """
    candidates = restarts.candidates(run.plan, run.fleet.sessions)
    for host in candidates:
        if host.name not in {*run.fleet.sessions, *run.since_lost}:
            run.since_lost[host.name] = run.clock.now()
            run.loop.after(0.0, _Retry(run, host, is_spare=True).begin)
    connected = [host for host in candidates if host.name in run.fleet.sessions]
    with contextlib.suppress(restarts.TooFewHostsError):
        restarts.replace_lost(run.plan, run.lost, connected, run.plan.attempt)
        return bool(connected)
    return False


def reason(error: HostError) -> str:
    """Return why a host is lost, on one line."""
    return error.why if error.kind == Trouble.LOST else f"it {error.in_one_line}"


def silence(run: Run, name: str) -> tuple[str, Loss]:
    """Return that a host has not answered, as text, and its loss; ("", NONE) if it responds."""
    since = run.since_lost.get(name)
    if since is None:
        return "", Loss.NONE
    seconds = run.clock.now() - since
    when = time.strftime("%H:%M:%S", time.localtime(run.clock.wall() - seconds))
    return f"the host has not answered since {when} ({duration(seconds)})", Loss.UNREACHABLE


def losses(run: Run) -> HostErrors:
    """Return the errors of lost hosts whose tasks have not been started."""
    what = "was lost before its tasks were started"
    return {name: loss(run, name, what) for name in run.lost}


def loss(run: Run, name: str, what: str) -> HostError:
    why = f"no connection could be made for {run.clock.now() - run.since_lost[name]:.0f} s"
    return problems.lost(run.plan.host(name), why, what)


def wait_for_lost(run: Run, patience: float, back: Callable[[Session], None] = lambda _: None) -> None:
    """Wait at most `patience` seconds for lost hosts, and process sessions that open or fail.

    `back` is called for each host that comes back. It returns early when a viewer requests the end.
    """
    for host in (*run.hosts, *run.plan.retired):
        if host.name not in run.fleet.sessions:
            lose(run, host.name, "there was no connection")
    for name, session in list(run.fleet.sessions.items()):
        if (error := session.error) is not None:
            lose(run, name, reason(error))
    deadline = run.clock.now() + patience
    while True:  # for replaced hosts it does not wait, but they may be back
        awaited = bool(run.lost)
        try:
            item = run.loop.get(timeout=max(0.0, deadline - run.clock.now()) if awaited else 0.0)
        except queue.Empty:
            return
        match item:
            case Reconnected(session):
                if regain(run, session):
                    back(session)
            case Lost(error=error) if run.fleet.sessions.get(item.host) is item.session:
                lose(run, item.host, reason(error))
            case ViewerRequest():
                return
            case _:
                pass
