"""Placement of tasks, conditions for another attempt, and the output of `launch --dry-run`."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from orchestrator.cli.main import main
from orchestrator.diagnosis.statement import Statement
from orchestrator.errors import ExitStatus
from orchestrator.events import TaskExited
from orchestrator.fleet import Fleet
from orchestrator.model import Host, Inventory, Job, RunPlan
from orchestrator.names import RunId
from orchestrator.phases import prepare, resume
from orchestrator.phases.context import Run
from orchestrator.phases.loop import Loop
from orchestrator.planning import explain
from orchestrator.planning.commands import choose_command, resolve
from orchestrator.planning.environ import TF_CONFIG
from orchestrator.requests import LaunchRequest
from orchestrator.run import restarts
from orchestrator.run.restarts import FailedAttempt, TooFewHostsError, replace_lost
from orchestrator.store import RunFolder
from orchestrator.store.bus import Bus
from orchestrator.store.folder import decode_plan
from orchestrator.sync import backups
from orchestrator.sync.contents import Contents
from orchestrator.sync.sending import Delivery
from orchestrator.timings import DEFAULT
from tests.golden import matches_golden
from tests.unit.plans import host, make


@pytest.mark.parametrize(
    ("job", "given", "chosen", "argv"),
    [
        ("", "", "", "py3 -m worker_entry"),
        ("", "--epochs 3", "--epochs 3", "py3 -m worker_entry --epochs 3"),
        ("", "train.py --epochs 3", "train.py --epochs 3", "py3 train.py --epochs 3"),
        ("", "train.R", "train.R", "Rscript train.R"),
        ("", "train.r x", "train.r x", "Rscript train.r x"),
        ("", "python -u train.py", "python -u train.py", "python -u train.py"),
        ("", "./run.sh --fast", "./run.sh --fast", "./run.sh --fast"),
        ("train.py --epochs 3", "", "train.py --epochs 3", "py3 train.py --epochs 3"),
        ("train.py --epochs 3", "other.py", "other.py", "py3 other.py"),
        ("train.py --epochs 3", "--lr 1", "train.py --epochs 3 --lr 1", "py3 train.py --epochs 3 --lr 1"),
    ],
)
def test_the_command_of_each_task(job: str, given: str, chosen: str, argv: str) -> None:
    inventory = Inventory((), Job(command=tuple(job.split())))
    command = choose_command(LaunchRequest(inventory=inventory, command=tuple(given.split()))).command
    assert " ".join(command) == chosen
    assert " ".join(resolve(command, "py3")) == argv


def test_the_whole_plan_is_printed() -> None:
    plan = make(
        host("boss", "chief", user="train", port=2200, python="~/venv/bin/python"),
        host("fd00::5", port=22, env={"A": "it's"}),
        host("here", "ps", workdir="/data/my runs", python="python3.12"),
        job=Job(setup="module load cuda\nulimit -n 9", secrets=("TOKEN",), env={"B": "\x1b[2J"}),
        command=("train.py", "--name", "a b"),
        sources=("import tensorflow as tf\ntf.keras.Sequential()",),
    )
    matches_golden("cli/dry_run.txt", "".join(f"{line}\n" for line in explain.dry_run(plan)))


def test_restarts_and_spares_are_in_the_plan() -> None:
    job = Job(max_restarts=2, min_hosts=1, backup="backup")
    spare = [host("a"), host("b"), host("s1", spare=True), host("s2", spare=True)]
    text = "\n".join(explain.dry_run(make(*spare, job=job, command=("t.py",))))
    assert (
        "\nrestarts: 2 times at most, or on 1 host; backup of worker/0 is copied to all\nspare: s[1-2]\n"
        in text
    )
    assert "spare: s[1-2] (not used without --max-restarts)" in explain.dry_run(make(*spare))
    assert not any("restarts" in line for line in explain.dry_run(make(host("a"))))


def test_a_dry_run_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('[[host]]\nssh = "gpu-[1-2]"\n')
    assert main(["launch", "--dry-run", "--json", "--hosts", str(hosts), "--", "true"]) == ExitStatus.OK
    planned = decode_plan(capsys.readouterr().out.encode())
    assert [str(task.id) for task in planned.tasks] == ["worker/0", "worker/1"]


# --- Further attempts: their conditions, pauses, and hosts, and which hosts receive the backup ---

PAUSES = DEFAULT.pauses


def exited(*, code: int | None = None, signal: int | None = None, lost: str = "") -> TaskExited:
    return TaskExited("worker/1", "b", "1", code, signal, lost, 3.0, 10.0, stopped=False)


@pytest.mark.parametrize(
    ("end", "lines", "place"),
    [
        (exited(code=1), ("ValueError: shape 41 at 0x7f00",), "ValueError: shape # at #"),
        (exited(code=1), ("Error in f(7) : no data",), "Error in f(#): no data"),
        (exited(code=7), (), "status 7, signal None"),  # a different status is a different failure
        (exited(signal=11), (), "status None, signal 11"),
        (exited(signal=9), (), ""),
        (replace(exited(signal=9), oom_kills=1), (), "out of memory"),
        (exited(code=137), (), ""),
        (exited(lost="rebooted"), (), ""),
        (exited(code=1), ("UnavailableError: Connection reset by peer",), ""),
        (None, (), ""),
    ],
)
def test_only_failures_of_the_program_itself_have_a_place(
    end: TaskExited | None, lines: tuple[str, ...], place: str
) -> None:
    assert restarts.failure(end, Statement(lines), {"worker/1": 5, "worker/0": 9}).place == place


def test_a_repeated_preparation_failure_ends_the_restarts() -> None:
    full = [restarts.unprepared(f"stage: {free} MB are free", outside=False) for free in (3, 2)]
    assert restarts.reason_to_end(full, 9) == "the same failure came twice at the same place"
    assert (
        restarts.reason_to_end([restarts.unprepared("launch: gpu-01 was lost", outside=True)] * 2, 9) is None
    )


def at(step: int | None, place: str = "ValueError", seconds: float = 3.0) -> FailedAttempt:
    return FailedAttempt(place, step, seconds)


def test_conditions_that_end_the_restarts() -> None:
    assert restarts.reason_to_end([at(1)], 0) == ""
    assert restarts.reason_to_end([at(1), at(2)], 1) == "it was started again 1 time, as allowed"
    assert restarts.reason_to_end([at(2), at(2)], 5) == "the same failure came twice at the same place"
    assert restarts.reason_to_end([at(2), at(2, "KeyError")], 5) is None
    assert restarts.reason_to_end([at(2, ""), at(2, "")], 5) is None  # external, so it may not recur
    assert restarts.reason_to_end([at(None), at(None)], 5) == "the same failure came twice at the same place"
    assert restarts.reason_to_end([at(None), at(None, seconds=60.0)], 5) is None
    assert restarts.reason_to_end([at(None), at(1)], 5) is None


def test_the_pause_grows_until_there_is_progress() -> None:
    grown = [restarts.pause([at(1, "")] * n, PAUSES) for n in (1, 2, 5, 50)]
    assert grown == [PAUSES[n] for n in (0, 1, 4, 4)]
    assert restarts.pause([at(1), at(1), at(5)], PAUSES) == PAUSES[0]
    assert restarts.pause([at(1), at(5), at(5)], PAUSES) == PAUSES[1]


# --- hosts ---


def planned(*hosts: Host, least: int | None = None) -> RunPlan:
    return make(*hosts, job=Job(max_restarts=3, min_hosts=least))


CHIEF = (host("a", "chief"), host("b", tasks=2), host("c"), host("p", "ps"))
SPARE = host("s", spare=True)
TWO_GPUS: dict[str, Any] = {"devices": ("0", "1")}
# A plan, and for each later attempt its lost hosts and its free ones.
SEATS: dict[str, tuple[Callable[[], RunPlan], tuple[tuple[str, str], ...]]] = {
    "a spare takes role, tasks and position": (
        partial(
            planned, CHIEF[0], host("b", tasks=2, task_port=3000), host("c"), replace(SPARE, task_port=4000)
        ),
        (("b", "s"),),
    ),
    "a replaced host that is back is a spare": (
        partial(planned, host("a"), host("b"), SPARE),
        (("b", "s"), ("a", "b")),
    ),
    "the backup stays with whoever led, also when the next attempt could not be prepared": (
        partial(planned, host("a"), host("b"), SPARE, least=1),
        (("a", "s"), ("s", "")),
    ),
    "a spare must have as many devices": (
        partial(planned, host("a", **TWO_GPUS), host("b", **TWO_GPUS), replace(SPARE, devices=("0",))),
        (("b", "s"),),
    ),
    "where they are not listed it may have them": (
        partial(planned, host("a", **TWO_GPUS), SPARE),
        (("a", "s"),),
    ),
    "fewer hosts, as far as allowed": (
        partial(planned, host("a"), host("b"), host("c"), least=2),
        (("a", ""), ("b", "")),
    ),
    "a worker inherits from the chief": (partial(planned, *CHIEF, least=1), (("a", ""),)),
    "no worker could": (partial(planned, *CHIEF, least=1), (("ac", ""),)),
    "no parameter server would be left": (partial(planned, *CHIEF, least=1), (("p", ""),)),
}


def seats(plan: RunPlan) -> str:
    tasks = [f"{task.id} {task.host} {json.loads(task.env[TF_CONFIG])['task']}" for task in plan.tasks]
    names = [f"{key} {[one.name for one in getattr(plan, key)]}" for key in ("spares", "retired")]
    return f"  {plan.attempt}: {plan.cluster}\n     {tasks}\n     {names}, leader {plan.preparing.leader}\n"


def test_the_replacement_for_a_lost_host() -> None:
    text = ""
    for name, (make_plan, steps) in SEATS.items():
        plan = make_plan()
        text += f"{name}\n{seats(plan)}"
        for attempt, (lost, free) in enumerate(steps, 2):
            known = {one.name: one for one in (*plan.spares, *plan.retired)}
            try:
                plan, changes = replace_lost(plan, set(lost), [known[one] for one in free], attempt)
            except TooFewHostsError as error:
                text += f"  {error}\n"
                break
            text += f"  {', '.join(f'{one.host} -> {one.by}' for one in changes)}\n{seats(plan)}"
    matches_golden("restarts/seats.txt", text)


def test_an_unusable_spare_returns_the_place() -> None:
    plan = planned(host("a", "chief"), host("b", tasks=2), host("s", spare=True), host("t", spare=True))
    first, _ = replace_lost(plan, {"a", "b"}, plan.spares, 2)
    assert restarts.joined(first) == ["s", "t"]
    again = restarts.undo_replacements(first, {"s"})
    assert again.cluster == {"chief": ("a:2222",), "worker": ("t:2222", "t:2223")}
    assert (restarts.joined(again), again.unfit, again.preparing.leader) == (["t"], ("s",), "a")
    assert [one.name for one in again.retired] == ["b", "s"]  # a validation may have left files there
    assert [one.name for one in restarts.candidates(again, {"b", "s"})] == ["b"]
    # If a replacement is planned, it stays until it is replaced.
    back, _ = replace_lost(first, {"t"}, [host("a")], 3)
    assert [one.name for one in restarts.undo_replacements(back, {"s"}).hosts] == ["s", "a"]


def test_worker_entry_saves_if_restarts_are_possible() -> None:
    assert make(host("a"), job=Job(max_restarts=1)).command == ("--checkpoint-dir", "checkpoints")
    for command in (("--checkpoint-dir=x",), ("t.py",)):
        assert make(host("a"), job=Job(max_restarts=1), command=command).command == command
    assert make(host("a")).command == ()


@pytest.mark.parametrize(
    ("lost", "awaited", "silent", "gone"),
    [
        ("a", "ab", 10.0, "a"),
        ("a", "b", 10.0, ""),  # its task has ended, so the host is not waited for
        ("ab", "bc", 10.0, "b"),
        ("a", "ab", 1.0, ""),  # another task is still training
        ("", "a", 10.0, ""),
    ],
)
def test_only_hosts_with_awaited_tasks_are_given_up(
    lost: str, awaited: str, silent: float, gone: str
) -> None:
    since = dict.fromkeys(lost, 10.0)
    assert restarts.given_up(since, set(awaited), silent=silent, patience=5.0) == gone
    assert restarts.given_up(since, set(awaited), silent=silent, patience=15.0) == ""


def test_later_attempts_get_unused_ports() -> None:
    """Two entries with one address may be the same machine; ports of a retired host also count as used."""
    plan = make(host("a", tasks=2), host("b"), replace(host("c", task_port=2224), address="a"))
    moved = restarts.next_ports(plan)
    assert moved.cluster == {"worker": ("a:2225", "a:2226", "b:2223", "a:2227")}
    lost, _ = replace_lost(moved, {"c"}, [replace(host("s"), address="a")], 2)
    again = restarts.next_ports(lost)
    assert again.cluster == {"worker": ("a:2228", "a:2229", "b:2224", "a:2230")}
    last = make(host("a", task_port=65535))
    assert restarts.next_ports(last) == last


def test_tasks_are_fenced_only_if_their_host_may_be_replaced() -> None:
    two = host("a"), host("b")
    spare = make(*two, host("s", spare=True), job=Job(max_restarts=1, host_timeout=90))
    fewer = make(*two, job=Job(max_restarts=1, min_hosts=1, host_timeout=5))
    neither = make(*two, job=Job(max_restarts=1))
    no_restart = make(host("a"), host("s", spare=True))
    plans = (spare, fewer, neither, no_restart)
    assert [restarts.fence(plan, 60.0) for plan in plans] == [90, 60, None, None]


def of_three(tmp_path: Path, connected: str) -> Run:
    plan = make(host("a"), host("b"), host("c"))
    fleet = Fleet(cast("Any", None), lambda _: None)
    fleet.sessions.update({name: cast("Any", name) for name in connected})
    return Run(RunFolder(tmp_path, RunId("r1")), plan, Bus().emit, fleet, Loop(), "me", None)


@pytest.mark.parametrize(
    ("backup", "sent"),
    [
        ("backup", []),
        ("/scratch/b", [("b", "/scratch/b"), ("c", "/scratch/b")]),
        ("~/b", [("b", "~/b"), ("c", "~/b")]),
    ],
)
def test_a_shared_workdir_implies_nothing_about_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backup: str, sent: list[tuple[str, str]]
) -> None:
    """A shared workdir holds one backup for all; an absolute path may be on each machine's own disk."""
    put: list[tuple[str, str]] = []

    def take(session: str, _: Contents, remote: str, *, mutable: bool) -> Delivery:
        assert mutable
        put.append((session, remote))
        return Delivery(1, 0.0, reused=False)

    monkeypatch.setattr(backups, "fetch", lambda *_: ())
    monkeypatch.setattr(backups, "push", take)
    run = of_three(tmp_path, "abc")
    (run.folder.path / "backup").mkdir(parents=True)
    run.staged.shared = dict.fromkeys("abc", "a")
    resume.carry_backup(run, "a", backup)
    assert sorted(put) == sent


@pytest.mark.parametrize(
    ("connected", "before", "now", "known"),
    [
        ("abc", {}, {"a": "a", "b": "a"}, {"a": "a", "b": "a"}),
        ("bc", {"a": "a", "b": "a", "c": "a"}, {"b": "b", "c": "b"}, {"a": "b", "b": "b", "c": "b"}),
        ("bc", {"a": "a", "b": "a"}, {}, {"a": "b"}),  # a group of one does not count
        ("bc", {"a": "a", "x": "a"}, {"b": "b", "c": "b"}, {"b": "b", "c": "b"}),
    ],
)
def test_disk_sharing_of_a_lost_host_is_remembered(
    tmp_path: Path, connected: str, before: dict[str, str], now: dict[str, str], known: dict[str, str]
) -> None:
    run = of_three(tmp_path, connected)
    run.staged.shared = before
    assert prepare.shared_now(run, now) == known


@pytest.mark.parametrize(
    ("connected", "shared", "made", "emptied"),
    [
        ("abc", {}, set(), False),
        ("abc", {}, {"b"}, False),
        ("abc", {}, {"a"}, True),
        ("abc", {"a": "a", "b": "a"}, {"b"}, True),  # one of them was queried first
        ("bc", {"a": "a", "b": "a"}, {"b"}, False),  # the host is lost
    ],
)
def test_a_recreated_folder_does_not_count_as_a_removal(
    tmp_path: Path, connected: str, shared: dict[str, str], made: set[str], emptied: bool
) -> None:
    run = of_three(tmp_path, connected)
    run.staged.shared, run.staged.made = shared, made
    assert resume._emptied(run, "a") is emptied
