"""A framework as a launch sees it: a row of the table, and a task's place among all of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchestrator.text import endpoint


@dataclass(frozen=True)
class Standing:
    """One task among all: the numbers that every framework counts, under names of its own."""

    rank: int
    peers: tuple[tuple[str, int], ...]  # address and task port of every task, in the order of their ranks
    local_rank: int  # among the tasks of its host
    local_size: int
    host_rank: int  # of its host among the hosts
    hosts: int
    devices: tuple[str, ...] | None  # of its host; None: nobody has said

    @property
    def size(self) -> int:
        return len(self.peers)

    @property
    def addresses(self) -> str:
        return ",".join(endpoint(address, port) for address, port in self.peers)


ALONE = Standing(0, (("localhost", 1),), 0, 1, 0, 1, None)


@dataclass(frozen=True)
class Framework:
    title: str
    imports: frozenset[str] = frozenset()  # modules that show it
    # Words of a program that trains with it on several tasks, where it imports several frameworks; and of a
    # command that starts such a program.
    spreads: re.Pattern[str] = re.compile(r"(?!)")
    starts: re.Pattern[str] = re.compile(r"(?!)")
    variables: Callable[[Standing], Mapping[str, str]] = lambda _: {}
    package: str = ""  # the distribution that it cannot do without
    packages: Mapping[str, str] = field(default_factory=dict)  # distributions that tasks agree on -> modules
    # Python for a process that has imported those: it may `write` the number of `gpus`, and its build.
    probe: str = ""
    validation: tuple[str, ...] = ()  # a module, and its options, that trains on a host alone
    # A task is shown all devices of its host, and takes the one of its local rank; else it is shown its own.
    shows_all: bool = False
