"""The notify command at the end of a run, and its failures."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from orchestrator.connectors import Connectors
from orchestrator.errors import UsageError
from orchestrator.events import FailureKind, Noted, Outcome, RunEnded, Stamped
from orchestrator.fleet import Fleet
from orchestrator.model import Inventory, Job
from orchestrator.names import RunId
from orchestrator.phases.context import Run
from orchestrator.phases.keeper import notify
from orchestrator.phases.loop import Loop
from orchestrator.requests import LaunchRequest
from orchestrator.store import RunFolder
from orchestrator.store.bus import Bus
from orchestrator.verbs.launch import notify_command
from tests.unit import plans

WORDS = "$(touch /tmp/x) \x1b[2J `id` ü"
ENDED = RunEnded(
    "r1", Outcome.FAILED, 1, 9.5, WORDS, "worker/0", (WORDS,) * 20_000, "/f", kind=FailureKind.EXIT
)


def tell(folder: Path, argv: tuple[str, ...]) -> list[str]:
    """Run a notify command, and return the resulting notes."""
    events: list[Stamped] = []
    loop = Loop()
    plan = plans.make(plans.host("gpu-01"))
    kept = RunFolder(folder / "runs", RunId("r1"))
    kept.create(plan)
    request = LaunchRequest(inventory=Inventory(plan.hosts, Job(), "hosts.toml"), notify=shlex.join(argv))
    kept.write_request(request)
    run = Run(kept, plan, Bus(events.append).emit, Fleet(Connectors(), loop.put), loop, "me", None)
    notify(run, ENDED, patience=0.5 if "sleep" in argv else 30.0)
    return [one.event.text for one in events if isinstance(one.event, Noted)]


def test_the_result_is_json_on_stdin_and_never_an_argument(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]) + '\\n' + sys.stdin.read())"
    assert tell(tmp_path, (sys.executable, "-c", code, str(tmp_path / "told"), "$HOME")) == []
    argv, result = (tmp_path / "told").read_text().splitlines()
    assert argv == "['$HOME']"
    fields = json.loads(result)
    assert (fields["event"], fields["outcome"], fields["status"]) == ("RunEnded", "failed", 1)
    assert (fields["cause"], fields["hosts"], len(fields["last_lines"])) == (WORDS, ["gpu-01"], 20_000)
    assert "\x1b" not in result


@pytest.mark.parametrize(
    ("argv", "note"),
    [
        (("true",), ""),  # reads none of a megabyte of input
        (("/no/such/program",), "could not be started: No such file or directory"),
        (("sleep", "600"), "was killed, since it had not ended after 0.5 s"),
        (("sh", "-c", "kill -9 $$"), "was killed by SIGKILL"),
        ((), ""),
    ],
)
def test_failures_of_notify_become_notes(argv: tuple[str, ...], note: str, tmp_path: Path) -> None:
    notes = tell(tmp_path, argv)
    assert notes == ([f"the run's end was not reported: the command of --notify {note}"] if note else [])


def test_the_notify_command_is_checked_before_anything_is_sent(tmp_path: Path) -> None:
    program = tmp_path / "say"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    job = Job(notify=(str(program), "x"))
    assert notify_command(job, None) == (str(program), "x")
    assert notify_command(job, "true 'a b'")[1:] == ("a b",)
    assert notify_command(Job(), None) == ()
    assert os.path.isabs(notify_command(job, "true")[0])  # noqa: PTH117
    for wrong in ("", "no-such-program", "say 'x", "cat | mail me", "export A=1"):
        with pytest.raises(UsageError, match="--notify"):
            notify_command(job, wrong)
