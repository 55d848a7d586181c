"""The rows of tests/ssh/test_transports.py, over steps of a real job."""

import os
import signal

import pytest

from orchestrator.model import Host, Way
from orchestrator.transport import Link
from tests.polling import poll
from tests.slurm.cluster import Slurm, processes
from tests.ssh.test_transports import (  # noqa: F401 - collected here once more, with this file's host
    connector,
    link,
    test_a_command_returns_output_and_status,
    test_a_killed_remote_process_ends_the_stream,
    test_a_million_lines_arrive_despite_a_stderr_flood_whose_tail_is_kept,
    test_bytes_pass_unchanged_both_ways_until_the_end_of_stdin,
    test_rsync_works_over_the_transport,
)


@pytest.fixture
def host(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    job = slurm.allocate("-N1", "-w", "n2")
    return Host("n2", "n2", "n2", via=Way.SRUN, job=job.number)


def is_there(*argv: str) -> bool:
    return any(command.split("\0")[:-1] == [*argv] for _, command, _ in processes())


def test_closing_leaves_nothing_on_the_remote_side(link: Link) -> None:  # noqa: F811
    far = ("sleep", "7654.3")
    link.open(far)
    assert poll(lambda: is_there(*far), 10)
    link.close()
    assert poll(lambda: not is_there(*far), 10)


def test_killing_srun_ends_a_reading_remote_process(link: Link) -> None:  # noqa: F811
    far = ("sh", "-c", "read -r line # 7654")
    channel = link.open(far)
    assert poll(lambda: is_there(*far), 10)
    # Its second srun process then ends the step; if both are killed, the agent's lifeline does.
    os.kill(channel._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert channel.recv(20) == b""
    assert poll(lambda: not is_there(*far), 10)
