"""Sending code, and launches during which a file changes, a link is cut, or a process is killed."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from tests.processes import cmdline, descendants, pids
from tests.ssh.runs.desk import Desk, until

LOOK = "import os; print('sees', sorted(f for _, _, names in os.walk('.') for f in names), flush=True)\n"


def noise(path: Path, size: int, seed: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(seed).randbytes(size))


def no_scraps(desk: Desk) -> bool:
    return not [
        path for host in desk.cluster.hosts for path in (Path(host.workdir) / "trees").glob(".incoming-*")
    ]


@contextlib.contextmanager
def writer(path: Path, code: str) -> Iterator[None]:
    """A process that writes to a file every few milliseconds."""
    program = f"import sys, time\nwhile True:\n    {code}\n    time.sleep(0.004)\n"
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        until("it writes", path.exists)
        yield
    finally:
        process.kill()
        process.wait()


def test_a_constantly_modified_tree_can_be_launched(desk: Desk) -> None:
    desk.script("look.py", LOOK)
    noise(desk.project / "a-model.bin", 20_000_000)  # more than is kept in memory
    with writer(desk.project / "train.log", "open(sys.argv[1], 'a').write('line\\n')"):
        for _ in range(2):
            viewer = desk.launch("--", "look.py").ended()
            assert "train.log" in viewer.stdout
    assert no_scraps(desk)


def remote_rsyncs(desk: Desk) -> list[int]:
    """Return rsync processes of this cluster's hosts only, since tests running in parallel send trees too."""
    assert desk.cluster.watcher is not None
    return [pid for pid in sorted(descendants([desk.cluster.watcher])) if b"rsync\0--server" in cmdline(pid)]


@pytest.mark.usefixtures("usable_rsync")
def test_a_killed_rsync_ends_the_run_and_frees_the_channel(desk: Desk) -> None:
    """The receiving rsync is two processes; the other one must not hold the channel for minutes."""
    desk.script("look.py", LOOK)
    noise(desk.project / "model.bin", 30_000_000)
    desk.launch("--", "look.py").ended()
    noise(desk.project / "model.bin", 30_000_000, seed=2)
    viewer = desk.launch("--", "look.py")
    receiving = until("rsync receives", lambda: len(found := remote_rsyncs(desk)) > 1 and found)
    os.kill(receiving[-1], signal.SIGKILL)
    assert viewer.wait() == 3, viewer.stderr
    assert desk.named("RunEnded")[0]["outcome"] == "cluster"
    desk.launch("--", "look.py").ended()
    until("nothing half-sent is left", lambda: no_scraps(desk), 10)


# --- the program is looked up on every host before anything is sent ---


@pytest.mark.parametrize(
    ("words", "what", "more"),
    [
        (("trainer", "--fast"), " have no program trainer", "the command is `trainer --fast`"),
        (("python", "/no/train.py", "0 1"), " have no /no/train.py", "try: write train.py if it is in"),
    ],
)
def test_a_program_on_no_host_is_refused(desk: Desk, words: tuple[str, ...], what: str, more: str) -> None:
    desk.script("train.py", "print('trained')\n")
    viewer = desk.launch("--", *words).ended(ExitStatus.CLUSTER)
    assert what in viewer.stderr
    assert more in viewer.stderr
    assert not desk.named("TreeSynced")
    assert not desk.named("TaskStarted")


def test_a_program_may_come_from_the_setup(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bin")
    (folder / "trainer").write_text("#!/bin/sh\necho trained\n")
    (folder / "trainer").chmod(0o755)
    desk.write_hosts(desk.cluster.hosts, job=f"[job]\nsetup = 'export PATH={folder}:$PATH'\n")
    desk.launch("--", "trainer").ended()


def test_a_path_that_exists_only_locally_is_noted(desk: Desk) -> None:
    here, there = desk.folder / "here", desk.folder / "there"
    here.symlink_to("/proc/self/cwd/only-here")  # exists for processes in the code folder
    there.mkdir()
    desk.script("only-here", "")
    viewer = desk.launch("--", "true", "--data", str(here), f"--more={there}", "--out", str(here)).ended()
    assert viewer.stderr.count("note: O203") == 1
    assert f"the argument {here} exists where you launched, but not on " in viewer.stderr
    assert "$ORCHESTRATE_DATA/here (docs/lint.md#o203)" in viewer.stderr


# --- Environment and arguments arrive unchanged, and secrets stay secret ---

NASTY = {
    "QUOTES": 'it\'s "quoted" `back` \\ slash',
    "NEWLINES": "one\ntwo\r\n\tthree",
    "SHELL": "$(touch /tmp/never) ${HOME} $$ ; rm -rf / & | > < * ? [a] {b,c} ~ #",
    "UNICODE": "grüße 漢字 🚀 \u2028",
    "EMPTY": "",
    "SPACES": "  both ends  ",
}

DUMP = """
import json, os, sys
names = sys.argv[1].split(",")
print("DUMP " + json.dumps({name: os.environ.get(name) for name in names} | {"argv": sys.argv[2:]}))
"""


def test_environment_and_arguments_arrive_unchanged(desk: Desk) -> None:
    desk.script("a 'b' $c.py", DUMP)
    words = [word for name, value in NASTY.items() for word in ("--env", f"{name}={value}")]
    viewer = desk.launch(*words, "--", "a 'b' $c.py", ",".join(NASTY), *NASTY.values()).ended()
    dumps = [line.partition("DUMP ")[2] for line in viewer.stdout.splitlines() if "DUMP " in line]
    assert len(dumps) == 2
    for dump in dumps:
        assert json.loads(dump) == {**NASTY, "argv": list(NASTY.values())}


def test_only_the_task_sees_a_secret(desk: Desk) -> None:
    secret = f"s3cr3t-{os.getpid()}"
    desk.write_hosts(desk.cluster.hosts, job='[job]\nsecrets = ["API_KEY"]\n')
    desk.script(
        "t.py",
        "import os, sys, time, pathlib\n"
        "pathlib.Path(sys.argv[1] + os.environ['TF_CONFIG'][-3]).write_text(os.environ['API_KEY'])\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.02)\n",
    )
    viewer = desk.launch(
        "--", "t.py", str(desk.folder / "seen-"), str(desk.folder / "enough"), API_KEY=secret
    )

    def seen() -> list[str]:
        """Return what the tasks have written; a file appears shortly before its content."""
        return [text for path in desk.folder.glob("seen-*") if (text := path.read_text())]

    assert set(until("both tasks saw it", lambda: len(found := seen()) == 2 and found)) == {secret}
    assert not [pid for pid in pids() if secret.encode() in cmdline(pid)]
    (desk.folder / "enough").touch()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert secret not in viewer.stdout + viewer.stderr
    desk.at_rest(desk.run_id())  # no file disappears while it is read
    kept = [desk.state, Path(desk.cluster.hosts[0].state or ""), Path(desk.cluster.hosts[1].state or "")]
    for root in kept:
        for path in root.rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path


def test_a_missing_secret_is_reported_before_anything_starts(desk: Desk) -> None:
    desk.write_hosts(desk.cluster.hosts, job='[job]\nsecrets = ["NO_SUCH_KEY"]\n')
    viewer = desk.launch("--", "true").ended(ExitStatus.USAGE)
    assert "NO_SUCH_KEY" in viewer.stderr
    assert not list(desk._runs())
