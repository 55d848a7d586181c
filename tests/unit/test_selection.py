"""`--only` and `--exclude`."""

from __future__ import annotations

import pytest

from orchestrator.errors import UsageError
from orchestrator.model import Host, Inventory
from orchestrator.planning.selection import narrow
from orchestrator.ranges import fold

INVENTORY = Inventory(tuple(Host(f"gpu-{n:02}", f"gpu-{n:02}", f"10.0.0.{n}") for n in range(1, 9)))


@pytest.mark.parametrize(
    ("only", "exclude", "left"),
    [
        (None, None, "gpu-[01-08]"),
        ("gpu-[01-03]", None, "gpu-[01-03]"),
        ("gpu-07, gpu-[02,01]", None, "gpu-[01-02,07]"),
        (None, "gpu-[02-08]", "gpu-01"),
        ("gpu-[01-04]", "gpu-02,gpu-08", "gpu-[01,03-04]"),
    ],
)
def test_hosts_are_chosen_by_their_names(only: str | None, exclude: str | None, left: str) -> None:
    assert fold(host.name for host in narrow(INVENTORY, only, exclude).hosts) == left


def test_the_inventory_s_order_stays() -> None:
    assert [host.name for host in narrow(INVENTORY, "gpu-03,gpu-01", None).hosts] == ["gpu-01", "gpu-03"]


@pytest.mark.parametrize(
    ("only", "exclude", "what", "hint"),
    [
        ("gpu-09", None, "--only names gpu-09, which", "write --only gpu-08"),
        ("gpu-[1-2]", None, "--only names gpu-[1-2], which", "write --only 'gpu-[01-02]'"),
        (None, "gpu-[01-03],gpo-4", "--exclude names gpo-4, which", "write --exclude 'gpu-[01-04]'"),
        ("gpu-[03-01]", None, "--only gpu-[03-01]: [03-01] counts down", "write --only"),
        ("", None, "--only names nothing", "write --only gpu-01"),
        ("gpu-01", "gpu-01", "no host is left", "choose"),
    ],
)
def test_mistakes_are_usage_errors(only: str | None, exclude: str | None, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        narrow(INVENTORY, only, exclude)
    assert caught.value.what.startswith(what)
    assert caught.value.hint.startswith(hint)


def test_a_task_is_no_host() -> None:
    with pytest.raises(UsageError, match="worker/1, which is a task, not a host") as wrong:
        narrow(INVENTORY, "worker/1", None)
    assert "--dry-run" in wrong.value.hint
