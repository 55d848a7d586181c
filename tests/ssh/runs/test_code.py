"""What is sent, and what becomes of a launch when something writes, is cut or killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.ssh.runs.desk import Desk, _cmdline, _descendants, until

LOOK = "import os; print('sees', sorted(f for _, _, names in os.walk('.') for f in names), flush=True)\n"


def noise(path: Path, size: int, seed: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(seed).randbytes(size))


def no_scraps(desk: Desk) -> bool:
    return not [
        path for host in desk.cluster.hosts for path in (Path(host.workdir) / "trees").glob(".incoming-*")
    ]


def test_no_secret_leaves_and_it_is_said(desk: Desk) -> None:
    desk.script("look.py", LOOK)
    for name in (".ssh/id_ed25519", ".aws/credentials", ".env"):
        (desk.project / name).parent.mkdir(exist_ok=True)
        (desk.project / name).write_text("a secret")
    viewer = desk.launch("--", "look.py")
    assert viewer.wait() == 0, viewer.stderr
    assert "sees ['look.py']" in viewer.stdout
    assert "left out of the code: .aws/, .env, .ssh/ (secrets)" in viewer.stderr


def test_a_home_is_refused_before_anything_is_made(desk: Desk) -> None:
    desk.script("look.py", LOOK)
    viewer = desk.launch("--", "look.py", HOME=str(desk.project))
    assert viewer.wait() == 2
    assert "cannot be sent as code" in viewer.stderr
    assert not list(desk._runs())


def test_a_subfolder_of_a_repository_finds_what_is_beside_it(desk: Desk) -> None:
    subprocess.run(["git", "init", "-q"], cwd=desk.project, check=True)
    (desk.project / "data").mkdir()
    (desk.project / "data" / "x").write_text("some data")
    (desk.project / "train").mkdir()
    desk.script("train/look.py", "print(open('../data/x').read()); open('made', 'w').write('1')\n")
    desk.project = desk.project / "train"
    viewer = desk.launch("--", "look.py")
    assert viewer.wait() == 0, viewer.stderr
    assert "some data" in viewer.stdout
    pull = desk.start("pull", "--hosts", str(desk.hosts), desk.run_id(), "made", "--to", "out")
    assert pull.wait() == 0, pull.stderr
    assert (desk.project / "out" / "made").read_text() == "1"
    alone = desk.launch("--code", ".", "--", "look.py")
    assert alone.wait() == 1
    assert "FileNotFoundError" in alone.stderr


@contextlib.contextmanager
def writer(path: Path, code: str) -> Iterator[None]:
    """Something that writes to a file every few milliseconds."""
    program = f"import sys, time\nwhile True:\n    {code}\n    time.sleep(0.004)\n"
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        until("it writes", path.exists)
        yield
    finally:
        process.kill()
        process.wait()


def test_a_tree_that_is_written_to_all_the_time_launches(desk: Desk) -> None:
    desk.script("look.py", LOOK)
    noise(desk.project / "a-model.bin", 20_000_000)  # more than is held in memory as it was read
    with writer(desk.project / "train.log", "open(sys.argv[1], 'a').write('line\\n')"):
        for _ in range(2):
            viewer = desk.launch("--", "look.py")
            assert viewer.wait() == 0, viewer.stderr
            assert "train.log" in viewer.stdout
    assert no_scraps(desk)


def remote_rsyncs(desk: Desk) -> list[int]:
    """Those of this cluster's hosts: beside this test others send trees too."""
    assert desk.cluster.watcher is not None
    return [
        pid for pid in sorted(_descendants([desk.cluster.watcher])) if b"rsync\0--server" in _cmdline(pid)
    ]


def test_a_killed_rsync_ends_the_run_and_lets_go(desk: Desk) -> None:
    """The receiving rsync is two processes; the other one must not hold the channel for minutes."""
    desk.script("look.py", LOOK)
    noise(desk.project / "model.bin", 30_000_000)
    assert desk.launch("--", "look.py").wait() == 0
    noise(desk.project / "model.bin", 30_000_000, seed=2)
    viewer = desk.launch("--", "look.py")
    receiving = until("rsync receives", lambda: len(found := remote_rsyncs(desk)) > 1 and found)
    os.kill(receiving[-1], signal.SIGKILL)
    assert viewer.wait() == 3, viewer.stderr
    assert desk.named("RunEnded")[0]["outcome"] == "cluster"
    assert desk.launch("--", "look.py").wait() == 0
    until("nothing half-sent is left", lambda: no_scraps(desk), 10)


def test_what_a_killed_keeper_has_left_of_a_transfer_is_gone_on_with(desk: Desk, tmp_path: Path) -> None:
    desk.script("look.py", LOOK)
    noise(desk.project / "model.bin", 30_000_000)
    assert desk.launch("--", "look.py").wait() == 0
    noise(desk.project / "model.bin", 30_000_000, seed=2)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    viewer = desk.launch("--", "look.py", "--detach", TMPDIR=str(scratch))
    until("rsync receives", lambda: remote_rsyncs(desk))
    os.kill(desk.keeper(), signal.SIGKILL)
    viewer.wait()
    assert not list(scratch.iterdir())
    assert desk.launch("--", "look.py").wait() == 0  # goes on there
    until("nothing half-sent is left", lambda: no_scraps(desk), 30)
