"""Two users of one machine, each with a run, and what each can see of the other."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rehearsal.cluster import task_ports
from tests import command
from tests.folders import remove
from tests.gpus import H100, fake_nvidia
from tests.polling import poll

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", "HOST={host}"]
TRAINS = r"printf 'Epoch 2/5\n\r10/100 [==>...] - ETA: 3s - loss: 0.5000'; sleep 600"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a second user needs root")


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        users = [{"gpu_uuid": H100["uuid"], "pid": str(os.getpid())}]
        self.path = fake_nvidia(folder / "bin", [H100 | {"memory.used": "40000"}], users)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PATH": self.path, "XDG_STATE_HOME": f"{self.folder}/s"}
        return command.run(words, self.folder, environ)

    def launch(self, host: str, *words: str) -> str:
        options = ("--skip-preflight", "--no-validate", "--detach", "--only", host)
        launched = self.call("launch", *options, "--", *words)
        assert launched.returncode == 0, launched.stderr
        return launched.stdout.strip()

    def rows(self, *words: str) -> list[dict[str, Any]]:
        return list(map(json.loads, self.call(*words, "--json").stdout.splitlines()))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    theirs = Path(tempfile.mkdtemp(dir="/var/tmp"))
    os.chown(theirs, NOBODY, NOBODY)
    with ExitStack() as held:
        ways = {"mine": None, "bobs": [*AS_NOBODY, "sh", "-c"], "gone": ["false", "{host}"]}
        folders, text = {"mine": tmp_path, "bobs": theirs, "gone": tmp_path / "gone"}, ""
        for (name, via), port in zip(ways.items(), task_ports(3, held), strict=True):
            text += (
                f'[[host]]\nname = "{name}"\nssh = "{"away" if via else "local"}"\naddress = "127.0.0.1"\n'
            )
            text += f'task_port = {port}\nworkdir = "{folders[name]}/work"\nstate = "{folders[name]}/node"\n'
            text += f"via = {json.dumps(via)}\n" if via else ""
        (tmp_path / "hosts.toml").write_text(text)
        made = Desk(tmp_path)
        yield made
    remove(theirs)


def test_each_host_reports_who_uses_it(desk: Desk) -> None:
    first, second = desk.launch("mine", "sh", "-c", TRAINS), desk.launch("bobs", "sleep", "600")
    try:
        assert poll(lambda: "epoch" in desk.rows("status", "--machines")[0]["progress"], 30)
        rows = desk.rows("status", "--machines")
        table = desk.call("status", "--machines")
        began = {run["run"]: run["created"] for run in desk.rows("runs")}
    finally:
        for run in (first, second):
            desk.call("stop", "--now", run)

    def row(host: str, **cells: str) -> dict[str, Any]:
        """Return the row with these cells; other users may also run tasks on this machine."""
        return next(one for one in rows if one["host"] == host and cells.items() <= one.items())

    own, other, theirs = row("mine", run=first), row("mine", run=second), row("bobs", run=second)
    assert own["tasks"] == theirs["tasks"] == ["worker/0"]
    assert own["progress"] == "epoch 2/5, step 10/100, loss 0.5000"
    assert own["user"] == theirs["user"] == other["user"] != ""  # who launched it
    assert row("bobs", run=first)["user"] == own["user"]  # a login may see the owners of other runs
    assert abs(theirs["since"] - own["since"]) < 60
    assert other["since"] == pytest.approx(began[second], abs=0.001)  # by the launching machine's clock
    assert f"pid {os.getpid()} " in row("mine", gpus="0")["said"]
    assert row("gone")["said"]
    assert (table.returncode, table.stdout.split()[:2]) == (0, ["host", "user"])
    assert desk.call("status", "--machines", first).returncode == 2
