"""Options, fixtures, and settings for all tests."""

import signal
from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings

from orchestrator.sync import rsync
from tests import golden
from tests.exclusive import exclusive


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the files of tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    golden.update = config.getoption("--update-golden")


@pytest.fixture(scope="session")
def usable_rsync() -> None:
    """Skip a test of rsync where it is absent, or too old to be used."""
    if rsync.here() is None:
        pytest.skip("no rsync, or one before 3.4, which orchestrate does not use")


@pytest.fixture
def cleaning() -> Iterator[None]:
    """Keep tests that clean or inspect orphans from running together: one would end the other's."""
    with exclusive("clean"):
        yield


# Each test of these keeps the cores busy for seconds.
_LONG = ("tf", "frameworks", "scripts", "slurm", "failnth")
# Timeouts of tests that set none; the first test of a folder also pays for what all of them need.
_SECONDS = {"tf": 300, "frameworks": 300, "slurm": 300, "cluster": 600}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the long tests first in every other of the equal parts that pytest-xdist gives its workers.

    The tests in the other parts mostly wait.
    """
    for item in items:
        seconds = _SECONDS.get(item.path.relative_to(config.rootpath).parts[1])
        if seconds and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(seconds))
    count = getattr(config, "workerinput", {}).get("workercount", 1)
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    long = [file for file in files if file[0].path.relative_to(config.rootpath).parts[1] in _LONG]
    others = iter([item for file in files if file not in long for item in file])
    every = (count + 1) // 2
    parts = [[item for file in long[at // 2 :: every] if at % 2 == 0 for item in file] for at in range(count)]
    for at, part in enumerate(parts):
        size = len(items) // count + (at < len(items) % count)
        part.extend(item for _, item in zip(range(size - len(part)), others, strict=False))
    items[:] = [item for part in parts for item in part]


# The speed of generating examples depends more on the machine's load than on the code.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

# Under `nohup`, or started in the background by a shell, every child process inherits ignored signals.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
