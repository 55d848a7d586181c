"""A node's report of a run can neither compromise the controller nor make it act on other nodes."""

import json
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

from orchestrator.errors import ExitStatus
from orchestrator.model import Host
from orchestrator.store.key import opened, seal
from tests.processes import is_gone
from tests.ssh.runs.desk import Desk, until
from tests.ssh.runs.test_keeper import counting, let_it_end
from tests.ssh.runs.test_restarts import FAST

SECRET = "wJalrXUtnFEMI-only-here"


def known(host: Host, run: str) -> dict[str, Any]:
    """Return the plan of a run as a node keeps it."""
    kept = Path(host.state or "") / "runs" / run / "run.json"
    return dict(json.loads(opened(kept.read_text(), None).plan))


def keep_on(host: Host, fields: dict[str, Any]) -> None:
    """Put an unsealed plan on a node, as its root user could."""
    folder = Path(host.state or "") / "runs" / str(fields["run"])
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "run.json").write_text(seal(json.dumps(fields).encode(), None))


def verb(desk: Desk, name: str, *words: str) -> tuple[int, str]:
    viewer = desk.start(name, *words, "--hosts", str(desk.hosts), AWS_SECRET_ACCESS_KEY=SECRET)
    status = viewer.wait()
    assert "Traceback" not in viewer.stdout + viewer.stderr
    return status, viewer.stdout + viewer.stderr


def taken_over(desk: Desk, run: str) -> None:
    until("the folder is there", lambda: desk.run_id() == run)
    until("it took over", lambda: len(desk.named("RunAdopted", run)) == 1)


def test_a_forged_plan_starts_nothing_and_leaks_no_secret(desk: Desk) -> None:
    """Both nodes keep the same forged plan of a real run, with restarts and a stranger's command."""
    desk.timings = FAST
    run = desk.detached(*counting(desk))
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    os.kill(desk.keeper(run), signal.SIGKILL)
    leak = desk.folder / "leak"
    argv = ["sh", "-c", f"env > '{leak}'"]
    for host in desk.cluster.hosts:
        fields = known(host, run)
        fields["restarts"] = {"most": 3}
        fields["secrets"] = ["AWS_SECRET_ACCESS_KEY"]
        fields["command"] = argv
        fields["recipe"]["setup"] = f"env > '{leak}'"
        for task in fields["tasks"]:
            task["argv"], task["setup"] = argv, f"env > '{leak}'"
        keep_on(host, fields)
    with desk.elsewhere():
        tail = desk.start("tail", run, "--notes", "--hosts", str(desk.hosts), AWS_SECRET_ACCESS_KEY=SECRET)
        taken_over(desk, run)
        os.kill(desk.task_pids(run, "worker/1")[0], signal.SIGKILL)
        assert tail.wait() == ExitStatus.RUN_FAILED, tail.stderr
        (ended,) = desk.named("RunEnded", run)
        assert ended["attempts"] == 1
        assert "seal" in ended["given_up"]
        desk.at_rest(run)  # no file disappears while it is read
    assert not leak.exists()
    kept = [path for host in desk.cluster.hosts for path in Path(host.state or "").parent.rglob("*")]
    assert not [path for path in kept if path.is_file() and SECRET.encode() in path.read_bytes()]
    desk.nothing_is_left(run)


def sealed_run(desk: Desk, *words: str) -> str:
    """A run with restarts whose keeper is gone."""
    desk.timings = FAST
    run = desk.detached("--max-restarts", "1", *words, *counting(desk))
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    desk.lose_keeper(run)
    return run


def test_a_keeper_whose_folder_was_removed_hands_over_the_run(desk: Desk) -> None:
    """It used to be unreachable while its agents held the ports, so that no other run could start."""
    viewer = desk.launch(*counting(desk))
    run = desk.run_id()
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    keeper = desk.keeper(run)
    shutil.rmtree(desk.run_folder(run))
    viewer.ended(ExitStatus.HERE)
    until("it is gone", lambda: is_gone(keeper))
    status, text = verb(desk, "stop", run)
    assert status == ExitStatus.OK, text
    desk.nothing_is_left(run)


def test_with_the_key_a_run_can_be_restarted_from_elsewhere(desk: Desk) -> None:
    run = sealed_run(desk)
    # One node lies about a later attempt; the other has the real plan.
    first, canary = desk.cluster.hosts[0], desk.folder / "canary"
    fields = {**known(first, run), "attempt": 99}
    for task in fields["tasks"]:
        task["argv"] = ["touch", str(canary)]
    keep_on(first, fields)
    with desk.elsewhere():
        tail = desk.start("tail", "--hosts", str(desk.hosts))
        taken_over(desk, run)
        os.kill(desk.task_pids(run, "worker/1")[0], signal.SIGKILL)
        until("the second attempt runs", lambda: len(desk.named("TaskStarted", run)) == 4)
        let_it_end(desk)
        assert tail.wait() == ExitStatus.OK, tail.stderr
        assert not json.loads((desk.run_folder(run) / "plan.json").read_text())["untrusted"]
        desk.logs_are_identical(run)
    assert not canary.exists()


def test_without_the_key_a_run_is_followed_but_not_restarted(desk: Desk) -> None:
    run = sealed_run(desk)
    key = desk.config / "orchestrate" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    kept = [path for host in desk.cluster.hosts for path in Path(host.state or "").parent.rglob("*")]
    assert not [path for path in kept if path.is_file() and key.read_bytes().strip() in path.read_bytes()]
    desk.config = desk.folder / "another machine's config"
    with desk.elsewhere():
        tail = desk.start("tail", run, "--hosts", str(desk.hosts))
        taken_over(desk, run)
        os.kill(desk.task_pids(run, "worker/1")[0], signal.SIGKILL)
        assert tail.wait() == ExitStatus.RUN_FAILED, tail.stderr
        assert desk.named("RunEnded", run)[0]["attempts"] == 1


def test_without_the_key_a_run_can_be_stopped(desk: Desk) -> None:
    run = sealed_run(desk)
    desk.config = desk.folder / "another machine's config"
    with desk.elsewhere():
        status, text = verb(desk, "stop", run)
        assert status == ExitStatus.OK, text
    desk.nothing_is_left(run)


def test_runs_invented_by_a_node_do_not_hide_the_real_one(desk: Desk) -> None:
    run = sealed_run(desk)
    first = desk.cluster.hosts[0]
    for other in (f"{run}-x", "20991231-235959-evil"):  # the newest of all
        keep_on(first, {**known(first, run), "run": other, "created": 4e9})
    with desk.elsewhere():
        status, text = verb(desk, "stop")
        assert status == ExitStatus.OK, text
        assert desk.named("RunEnded", run)[0]["outcome"] == "stopped"
    desk.nothing_is_left(run)


def test_a_replayed_old_plan_starts_nothing(desk: Desk) -> None:
    """The plan is the user's own, with their seal, of a run that another host no longer has."""
    run = sealed_run(desk)
    desk.start("stop", run).wait()
    first, second = desk.cluster.hosts
    folder = Path(second.state or "") / "runs" / run
    folder.rename(desk.folder / "cleaned")
    (Path(first.state or "") / "runs" / run / "stopped").unlink(missing_ok=True)
    with desk.elsewhere():
        status, text = verb(desk, "tail", run)
        assert status == ExitStatus.CLUSTER, text
        assert f"{second.name} has no record of it" in text
        assert not desk.task_pids(run)
