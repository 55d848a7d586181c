"""What the user gives arrives as it is, and what is secret stays so."""

import json
import os
from pathlib import Path

from orchestrator.errors import ExitStatus
from tests.processes import cmdline, pids
from tests.ssh.runs.desk import Desk, until

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


def test_environment_and_arguments_arrive_exactly(desk: Desk) -> None:
    desk.script("a 'b' $c.py", DUMP)
    words = [word for name, value in NASTY.items() for word in ("--env", f"{name}={value}")]
    viewer = desk.launch(*words, "--", "a 'b' $c.py", ",".join(NASTY), *NASTY.values()).ended()
    dumps = [line.partition("DUMP ")[2] for line in viewer.stdout.splitlines() if "DUMP " in line]
    assert len(dumps) == 2
    for dump in dumps:
        assert json.loads(dump) == {**NASTY, "argv": list(NASTY.values())}


def test_a_secret_is_seen_by_the_task_and_by_nobody_else(desk: Desk) -> None:
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
        """What the tasks have written; a file is there a moment before its content."""
        return [text for path in desk.folder.glob("seen-*") if (text := path.read_text())]

    assert set(until("both tasks saw it", lambda: len(found := seen()) == 2 and found)) == {secret}
    assert not [pid for pid in pids() if secret.encode() in cmdline(pid)]
    (desk.folder / "enough").touch()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert secret not in viewer.stdout + viewer.stderr
    desk.at_rest(desk.run_id())  # no file goes while it is read
    kept = [desk.state, Path(desk.cluster.hosts[0].state or ""), Path(desk.cluster.hosts[1].state or "")]
    for root in kept:
        for path in root.rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path


def test_a_missing_secret_is_said_before_anything_starts(desk: Desk) -> None:
    desk.write_hosts(desk.cluster.hosts, job='[job]\nsecrets = ["NO_SUCH_KEY"]\n')
    viewer = desk.launch("--", "true").ended(ExitStatus.USAGE)
    assert "NO_SUCH_KEY" in viewer.stderr
    assert not list(desk._runs())
