"""All tasks stop at the same step, whenever and wherever SIGTERM arrives."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Set as AbstractSet

import pytest

from worker_entry.failure import ExpectedError
from worker_entry.ports import GONE_AFTER, OPEN, Presence
from worker_entry.stopping import NEVER, STEP, Stop

STEPS = 40
PATIENCE = 20


class MemoryBoard:
    """The coordination service's rules: a key is put once, a get waits."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: str) -> bool:
        with self._changed:
            if key in self._values:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def get(self, key: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, PATIENCE), f"nobody put {key}"
            return self._values[key]


def train(tasks: int, terms: AbstractSet[tuple[int, int]] = frozenset()) -> list[int]:
    """The last step of each task. A step is a barrier; `terms` asks task t in step s to stop."""
    board = MemoryBoard()
    names = [f"worker/{i}" for i in range(tasks)]
    barrier = threading.Barrier(tasks)
    last = [0] * tasks
    failures: list[BaseException] = []

    def task(index: int) -> None:
        stop = Stop(names[index], names, board)
        try:
            for step in range(1, STEPS + 1):
                barrier.wait(PATIENCE)  # the gradients' sum: nobody ends this step before all have begun it
                if (index, step) in terms:
                    stop.ask()
                last[index] = step
                if stop.now(step):
                    break
            stop.close()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=task, args=(index,), daemon=True) for index in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures
    assert not any(thread.is_alive() for thread in threads), f"stuck at steps {last}"
    return last


def test_nobody_asked_all_steps_done() -> None:
    assert train(8) == [STEPS] * 8


def test_asked_at_any_steps_at_once_all_stop_at_one() -> None:
    dice = random.Random(7)
    for _ in range(60):
        tasks = dice.randint(2, 6)
        asked = {(dice.randrange(tasks), dice.randint(1, STEPS)) for _ in range(dice.randint(1, 6))}
        last = train(tasks, asked)
        first = min(step for _, step in asked)
        assert last == [min(first + 1, STEPS)] * tasks, asked


def test_a_single_process_stops_at_the_step_that_ends() -> None:
    stop = Stop("alone", ["alone"], MemoryBoard())
    assert not stop.now(1)
    before = signal.getsignal(signal.SIGTERM)
    try:
        stop.obey_sigterm()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.now(2)
    finally:
        signal.signal(signal.SIGTERM, before)
    stop.close()


def test_a_task_past_the_step_fails_instead_of_saving_a_state_of_its_own() -> None:
    board = MemoryBoard()
    stop = Stop("worker/0", ["worker/0", "worker/1"], board)
    board.put(STEP, "3")
    board.get(f"{STEP}/worker/0")
    assert stop.now(3)
    with pytest.raises(RuntimeError, match="out of step"):
        stop.now(4)


def test_closing_ends_the_reader_and_is_no_stop() -> None:
    board = MemoryBoard()
    stop = Stop("worker/0", ["worker/0", "worker/1"], board)
    stop.close()
    assert board.get(STEP) == NEVER
    assert not stop.now(5)


def looks(*answers: str) -> Presence:
    queue = iter(answers)
    times = iter(range(1000))
    return Presence("chief/0", lambda: next(queue), 5, lambda: next(times))


def test_a_task_is_gone_after_it_was_there_and_missed_several_times() -> None:
    presence = looks("refused", "refused", OPEN, "refused", OPEN, *["refused"] * GONE_AFTER)
    answers = [presence.gone() for _ in range(5 + GONE_AFTER)]
    assert answers == [False] * (4 + GONE_AFTER) + [True]


def test_a_task_that_never_comes_is_named() -> None:
    presence = looks(*["refused"] * 6)
    assert not any(presence.gone() for _ in range(5))
    with pytest.raises(ExpectedError, match="chief/0 did not come"):
        presence.gone()
