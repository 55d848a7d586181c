"""`launch --continue`: a run in the folders of an earlier one, with its checkpoints and the current code."""

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, Viewer, until

# The first task writes, and all read; with arguments each task writes its own file.
TRAIN = """
import json, os, pathlib, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
saved = pathlib.Path("saved", f"rank_{index}" if "own" in sys.argv else "all")
step = int(saved.read_text()) if saved.exists() else 0
print("VERSION", "begins at", step, flush=True)
if index == 0 or "own" in sys.argv:
    saved.parent.mkdir(exist_ok=True)
    saved.write_text(str(step + 1))
while "wait" in sys.argv:
    time.sleep(0.1)
"""


def trained(desk: Desk, *words: str, version: str = "one") -> str:
    desk.script("train.py", TRAIN.replace("VERSION", version))
    desk.launch(*words).ended()
    return desk.run_id()


def printed(desk: Desk, run: str) -> dict[str, str]:
    logs = (desk.run_folder(run) / "logs").rglob("*.log")
    return {path.stem: path.read_text().strip() for path in logs}


def refused(desk: Desk, *words: str, status: ExitStatus = ExitStatus.CLUSTER) -> Viewer:
    return desk.launch(*words).ended(status)


def test_a_run_can_be_continued_repeatedly_with_the_current_code(desk: Desk) -> None:
    first = trained(desk, "--", "train.py", "own")
    hosts = desk.cluster.hosts
    desk.script("removed.py", "")
    second = trained(desk, "--continue", first, "--", "train.py", "own", version="two")
    assert printed(desk, second) == {f"worker-{n}": "two begins at 1" for n in range(2)}
    third = trained(desk, "--continue", second, "--name", "third", "--", "train.py", "own", version="three")
    assert printed(desk, third) == {f"worker-{n}": "three begins at 2" for n in range(2)}
    work = desk.node_work(hosts[1], first)
    assert "three" in (work / "train.py").read_text()
    assert not desk.node_work(hosts[1], second).exists()
    notes = [event["text"] for event in desk.named("Noted", third)]
    assert any(note.startswith(f"continues in the folder of run {first} on ") for note in notes), notes

    desk.start("pull", "third", "--all", "--to", "here", "--hosts", str(desk.hosts)).ended()
    found = {path.name: path.read_text() for path in (desk.project / "here").rglob("rank_*")}
    assert found == {"rank_0": "3", "rank_1": "3"}
    assert not [*(desk.project / "here").rglob("*.py")]  # unchanged code from any of the three

    desk.start("launch", "--replay", "third", "--hosts", str(desk.hosts)).ended()  # it starts over
    assert printed(desk, desk.run_id()) == {f"worker-{n}": "three begins at 0" for n in range(2)}


def test_a_checkpoint_that_only_the_first_host_has_is_reported(desk: Desk) -> None:
    """Keras tasks would all train and succeed, with different weights."""
    alone = "saved/all is on rehearsal-01, but not on rehearsal-02: "
    cases = (
        ((), "all.pt", "if each task loads it, they continue from different weights"),
        ((), ".metadata", "each task reads the parts that all have written"),
        ((), "all", ""),
        (("own",), "{index}.pt", ""),
    )
    for words, name, noted in cases:
        script = TRAIN.replace('"all"', f'"{name}"').replace("rank_{index}", name)
        desk.script("train.py", script)
        desk.launch("--", "train.py", *words).ended()
        viewer = desk.launch("--continue", desk.run_id(), "--", "train.py", *words).ended()
        reported = viewer.stderr.count(alone.replace("all", name) + noted)
        assert reported == 2 * bool(noted), viewer.stderr  # and at the end
        assert bool(desk.named("RunEnded", desk.run_id())[0]["warnings"]) == bool(noted)


def test_a_new_host_gets_the_folder_and_a_backup_is_copied_to_all(four: Desk) -> None:
    hosts = four.cluster.hosts
    four.write_hosts(hosts[:2])
    first = trained(four, "--", "train.py")
    stale = four.node_work(hosts[2], first) / "saved" / "all"  # from an attempt in which it was lost
    stale.parent.mkdir(parents=True)
    stale.write_text("9")
    four.write_hosts([hosts[0], hosts[2]])
    second = trained(four, "--continue", first, "--", "train.py")
    assert printed(four, second) == {f"worker-{n}": "one begins at 1" for n in range(2)}

    four.write_hosts(hosts[:4], job='[job]\nbackup = "saved"\n')
    third = trained(four, "--continue", second, "--", "train.py")
    assert printed(four, third) == {f"worker-{n}": "one begins at 2" for n in range(4)}

    four.write_hosts(hosts[1:4], job='[job]\nbackup = "saved"\n')  # the host that saved is gone
    fourth = trained(four, "--continue", third, "--", "train.py")
    assert printed(four, fourth) == {f"worker-{n}": "one begins at 2" for n in range(3)}
    notes = " ".join(event["text"] for event in four.named("Noted", fourth))
    assert f"{hosts[0].name}, the first host of run {first}, no longer has its folder" in notes


@pytest.mark.parametrize(
    ("own", "order", "texts"),
    [
        (False, (1, 0), ["worker/0 was on rehearsal-01", "would be on rehearsal-02", "`backup` under [job]"]),
        (
            True,
            (0, 2, 1),
            ["rehearsal-02 has files of single tasks (saved/rank_1)", "worker/1 was on rehearsal-02"],
        ),
        (True, (0,), ["files of single tasks (saved/rank_0)", "there were 2 tasks, and there would be 1"]),
    ],
)
def test_mismatched_folders_are_refused(
    four: Desk, own: bool, order: tuple[int, ...], texts: list[str]
) -> None:
    four.write_hosts(four.cluster.hosts[:2])
    words = ("--env", "TF_CONFIG_IS=1", "--", "train.py", *["own"] * own)
    first = trained(four, *words)
    four.write_hosts([four.cluster.hosts[number] for number in order], job="[job]\ntf_config = true\n")
    before = sorted(Path(four.cluster.hosts[0].workdir).rglob("*"))
    viewer = refused(four, "--continue", first, *words)
    assert all(text in viewer.stderr for text in texts), viewer.stderr
    assert sorted(Path(four.cluster.hosts[0].workdir).rglob("*")) == before
    four.write_hosts(four.cluster.hosts[:2])
    assert printed(four, trained(four, "--continue", first, *words))["worker-0"] == "one begins at 1"


def test_runs_that_cannot_be_continued_are_refused(desk: Desk) -> None:
    run = desk.detached("--", desk.script("train.py", TRAIN), "wait")
    until("it trains", lambda: len(printed(desk, run)) == 2 and all(printed(desk, run).values()))
    alive = refused(desk, "--continue", run, "--", "train.py", status=ExitStatus.USAGE)
    assert f"error: run {run} has not ended\n  try: `orchestrate stop {run}` ends it" in alive.stderr

    desk.lose_keeper(run)  # its tasks are still alive
    alive = refused(desk, "--continue", run, "--other-ports", "--", "train.py")
    assert f"have live tasks of run {run} in this folder" in alive.stderr
    desk.start("stop", run, "--hosts", str(desk.hosts)).ended()

    both = refused(desk, "--continue", run, "--replay", run, status=ExitStatus.USAGE)
    assert "--replay and --continue cannot be combined" in both.stderr
    bare = refused(desk, "--continue", run, status=ExitStatus.USAGE)
    assert f"error: run {run} ran `train.py wait`" in bare.stderr
    unknown = refused(desk, "--continue", "nonesuch", "--", "train.py", status=ExitStatus.USAGE)
    assert "there is no run 'nonesuch'" in unknown.stderr

    plan = desk.run_folder(run) / "plan.json"
    text = plan.read_text()
    owner = json.loads(text)["owner"]
    plan.write_text(text.replace(owner, "eve@desk"))
    theirs = refused(desk, "--continue", run, "--", "train.py", status=ExitStatus.USAGE)
    assert "eve@desk launched it" in theirs.stderr
    plan.write_text(json.dumps({**json.loads(text), "cwd": "sub"}))
    elsewhere = refused(desk, "--continue", run, "--", "train.py", status=ExitStatus.USAGE)
    assert f"the tasks of run {run} ran in sub/ of the code, and would run in the top" in elsewhere.stderr
    plan.write_text(text)

    for host in desk.cluster.hosts:
        shutil.rmtree(Path(host.workdir) / "runs" / run)
    gone = refused(desk, "--continue", run, "--", "train.py")
    assert f"no host has the working folder of run {run} any more" in gone.stderr


def test_clean_keeps_a_folder_that_a_live_run_continues_in(desk: Desk) -> None:
    first = trained(desk, "--", "train.py")
    elsewhere, saved = desk.folder / "a large disk", desk.node_work(desk.cluster.hosts[0], first) / "saved"
    saved.rename(elsewhere)
    saved.symlink_to(elsewhere)
    (desk.project / "saved").mkdir()
    desk.script("saved/notes", "of today")
    desk.launch("--continue", first, "--detach", "--", "train.py", "wait").wait()
    second = desk.run_id()
    until("it trains", lambda: len(printed(desk, second)) == 2 and all(printed(desk, second).values()))
    assert printed(desk, second)["worker-0"] == "one begins at 1"
    assert (elsewhere / "notes").read_text() == "of today"
    words = ("clean", "--work", "--yes", "--older-than", "0", "--hosts", str(desk.hosts))
    desk.start(*words).ended()
    assert all((desk.node_work(host, first) / "train.py").exists() for host in desk.cluster.hosts)
    desk.start("stop", second, "--hosts", str(desk.hosts)).ended()
