"""The rows of tests/ssh/test_transports.py, over steps of a real job."""

from __future__ import annotations

import pytest

from orchestrator.model import Host, Way
from orchestrator.transport import Link
from tests.polling import poll
from tests.slurm.cluster import Slurm, processes
from tests.ssh.test_transports import (  # noqa: F401 - collected here once more, with this file's host
    connector,
    link,
    test_32_hosts_at_once,
    test_a_command_answers_and_says_its_status,
    test_a_far_end_that_is_killed_ends_the_stream,
    test_a_million_lines_arrive_while_stderr_is_flooded_and_its_tail_is_kept,
    test_bytes_go_both_ways_unchanged_until_the_end_of_stdin,
    test_rsync_goes_over_it,
)


@pytest.fixture
def host(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    job = slurm.allocate("-N1", "-w", "n2")
    return Host("n2", "n2", "n2", via=Way.SRUN, job=job.number)


def test_a_close_leaves_nothing_at_the_far_end(link: Link) -> None:  # noqa: F811
    def there() -> list[str]:
        return [command for command, _ in processes() if command == "sleep\x007654.3\0"]

    link.open(["sleep", "7654.3"])
    assert poll(there, 10)
    link.close()
    assert poll(lambda: not there(), 10)
