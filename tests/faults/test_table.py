"""Every fault is found, and nothing else is."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator import wire
from orchestrator.events import CheckReported
from orchestrator.ranges import fold
from tests.faults.ground import NAMES, PORT, Ground, missing, wrong
from tests.faults.rows import ROWS, Row

_LISTEN = "import socket; s = socket.create_server(('', {port})); print('up', flush=True); s.accept()"
_NOT_ABOUT = {"tensorflow"}  # of jobs that need none


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if why := missing():
        pytest.skip(why)
    with Ground(tmp_path_factory.mktemp("faults")) as made:
        yield made


def said(checks: list[CheckReported]) -> list[tuple[str, str, str, str]]:
    """(hosts, check, found, why and hint), alike ones together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for check in checks:
        groups.setdefault((check.check, check.found, f"{check.why} | {check.hint}"), []).append(check.host)
    return sorted((fold(hosts), *texts) for texts, hosts in groups.items())


@contextlib.contextmanager
def made(ground: Ground, row: Row) -> Iterator[None]:
    """The fault, for as long as the block runs."""
    ground.reset()
    for name in NAMES:
        script = row.logins.get(name, row.logins.get("*"))
        if script:
            ground.login(name, script)
    ground.shell(row.script)
    with contextlib.ExitStack() as stack:
        if row.holds is not None:
            name, port = row.holds
            stack.enter_context(_program(ground, name, _LISTEN.format(port=port)))
        if row.leases is not None:
            name, run = row.leases
            other = ground.agents(ground.host(name))
            stack.callback(other.close)
            asked = wire.Lease(run=run, owner="ann@laptop", ports={str(PORT): "worker/0"})
            assert other.ask(asked).good[name].conflicts == ()
        yield
    if row.logins:
        ground.disconnect()


@contextlib.contextmanager
def _program(ground: Ground, name: str, code: str) -> Iterator[None]:
    argv = [str(ground.folder / f"{name}-python"), "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_it_is_found_and_nothing_else(ground: Ground, row: Row) -> None:
    with made(ground, row):
        hosts = []
        for name in row.only:
            python = {"python": str(ground.folder / f"{name}-trains")} if row.trains else {}
            changes = {**python, **row.hosts.get(name, {})}
            for key in ("workdir", "agent_python"):
                if key in changes and not Path(changes[key]).is_absolute():
                    changes[key] = str(ground.folder / changes[key])
            hosts.append(ground.host(name, **changes))
        ground.disconnect_changed(hosts)
        found, _ = ground.preflight(
            *hosts,
            command=("train.py",) if row.trains else ("true",),
            closely=row.trains,
            patience=row.patience,
        )
    assert not found.failed
    got = said([check for check in wrong(found) if row.trains or check.check not in _NOT_ABOUT])
    wanted = sorted(row.wanted)
    assert len(got) == len(wanted), got
    for one, (hosts_, check, part, other) in zip(got, wanted, strict=True):
        assert one[:2] == (hosts_, check), got
        assert part in one[2]
        assert other in one[3]


def test_preflights_that_overlap_do_not_accuse_each_other(ground: Ground) -> None:
    """Four at once, each with other hosts in another order: each has its turn."""
    ground.reset()
    choices = (("h1", "h2", "h3"), ("h3", "h2"), ("h4", "h3", "h1"), ("h1", "h2", "h3", "h4"))

    def one(number: int) -> list[CheckReported]:
        mine = Ground(ground.folder)  # the same machines, with agents of its own
        try:
            names = choices[number % len(choices)]
            found, _ = mine.preflight(*(ground.host(name) for name in names))
            assert not found.failed
            return [check for check in wrong(found) if check.check not in _NOT_ABOUT]
        finally:
            mine.disconnect()

    with ThreadPoolExecutor(4) as pool:
        assert [check for checks in pool.map(one, range(8)) for check in checks] == []


def test_another_preflight_that_stays_is_named(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.reset()
    monkeypatch.setattr("orchestrator.phases.mesh.PATIENCE", 0.5)
    other = ground.agents(ground.host("h2"))
    try:
        listen = wire.Listen(run="", ports=[PORT], nonce="n", host="h2")
        assert other.ask(listen).good["h2"].listening == (PORT,)
        found, _ = ground.preflight(*(ground.host(name) for name in ("h1", "h2")))
    finally:
        other.close()
    (only,) = [check for check in wrong(found) if check.check not in _NOT_ABOUT]
    assert (only.host, only.check, only.found) == ("h2", "port", f"{PORT} taken")
    assert "a preflight of" in only.why
