"""The pulse of a fleet: both ends speak now and then, and a host that is silent for long is given up."""

from __future__ import annotations

import threading
import time

from orchestrator import wire
from orchestrator.fleet.session import Session
from orchestrator.timings import DEFAULT, Timings

KEEP_ALIVE = 20.0  # seconds between our own words to an agent, which leaves when it hears none
_TICK = 0.5
_FROZEN = 4.0  # seconds between two ticks after which it was us who stood still


class Pulse:
    """Watches sessions from a thread of its own, whatever the others wait for."""

    def __init__(self, timings: Timings = DEFAULT) -> None:
        self._timings = timings
        self._lock = threading.Lock()
        self._sessions: set[Session] = set()
        self._stopped = threading.Event()
        self._running = False

    def watch(self, session: Session) -> None:
        """Have the session's agent send heartbeats, and give the session up when they stay away."""
        session.submit(wire.Beats(every=self._timings.beat))
        with self._lock:
            self._sessions.add(session)
            if not self._running:
                threading.Thread(target=self._run, name="pulse", daemon=True).start()
                self._running = True

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        looked = spoke = time.monotonic()
        while not self._stopped.wait(min(_TICK, self._timings.silence / 4)):
            now = time.monotonic()
            with self._lock:
                self._sessions = {session for session in self._sessions if session.alive}
                sessions = list(self._sessions)
            if now - looked > _FROZEN:  # what was said meanwhile is yet to be read
                for session in sessions:
                    session.heard = now
            looked = now
            for session in sessions:
                if now - session.heard > self._timings.silence:
                    session.give_up(f"no word for {self._timings.silence:.0f} s")
                session.look(now)
            if now - spoke > KEEP_ALIVE:
                spoke = now
                for session in sessions:
                    session.speak()
