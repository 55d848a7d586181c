"""Every fault is reported, and nothing else is."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import wire
from orchestrator.connectors import Connectors
from orchestrator.events import CheckReported, Level
from orchestrator.fleet import Fleet
from orchestrator.ranges import fold
from tests.faults.ground import NAMES, PORT, Ground, missing
from tests.faults.rows import ROWS, Row

_LISTEN = f"import socket; s = socket.create_server(('', {PORT})); print('up', flush=True); s.accept()"


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if why := missing():
        pytest.skip(why)
    with Ground(tmp_path_factory.mktemp("faults")) as made:
        yield made


def reported(checks: list[CheckReported]) -> list[tuple[str, str, str, str]]:
    """Return (hosts, check, found, why and hint), with equal ones merged."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for check in checks:
        groups.setdefault((check.check, check.found, f"{check.why} | {check.hint}"), []).append(check.host)
    return sorted((fold(hosts), *texts) for texts, hosts in groups.items())


@contextlib.contextmanager
def made(ground: Ground, row: Row) -> Iterator[None]:
    """Cause the fault while the block runs."""
    ground.reset()
    for name in NAMES:
        script = row.logins.get(name, row.logins.get("*"))
        if script:
            ground.login(name, script)
    ground.shell(row.script)
    with contextlib.ExitStack() as stack:
        if row.holds:
            stack.enter_context(_listening(ground, row.holds))
        if row.leases:
            other = stack.enter_context(contextlib.closing(Fleet(Connectors(), lambda _frame: None)))
            assert other.connect([ground.host(row.leases)]) == {}
            ports = {str(PORT): "worker/0"}
            asked = wire.Lease(run="r-other", owner="ann@laptop", machine="", since=1.0, ports=ports)
            assert other.ask(asked).good[row.leases].conflicts == ()
        yield
    if row.logins:
        ground.disconnect()


@contextlib.contextmanager
def _listening(ground: Ground, name: str) -> Iterator[None]:
    argv = [str(ground.folder / f"{name}-python"), "-c", _LISTEN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_preflight_reports_the_fault_and_nothing_else(ground: Ground, row: Row) -> None:
    with made(ground, row):
        hosts = []
        for name in NAMES:
            python = {"python": str(ground.folder / f"{name}-trains")} if row.trains else {}
            changes = {**python, **row.hosts.get(name, {})}
            for key in ("workdir", "agent_python"):
                if key in changes and not Path(changes[key]).is_absolute():
                    changes[key] = str(ground.folder / changes[key])
            hosts.append(ground.host(name, **changes))
        ground.disconnect_changed(hosts)
        found = ground.preflight(hosts, trains=row.trains, framework=row.framework)
    assert not found.failed
    wrong = [check for check in found.checks if check.level in (Level.WARN, Level.FAIL)]
    # A job that needs no framework gets no report of a missing one.
    got = reported([check for check in wrong if row.trains or check.check != row.framework.value])
    wanted = sorted(row.wanted)
    assert len(got) == len(wanted), got
    for one, (hosts_, check, part, other) in zip(got, wanted, strict=True):
        assert one[:2] == (hosts_, check), got
        assert part in one[2]
        assert other in one[3]
