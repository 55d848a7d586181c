"""Limits under which training fails, found by making it fail with TensorFlow 2.21 on a processor. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.checks.seen import Needs, Seen
from orchestrator.events import Check, CheckReported, Level
from orchestrator.ranges import fold
from orchestrator.text import size

# Of a task that trains; below them TensorFlow aborts, or Python cannot start a thread.
LEAST_FILES, FILES_OF_A_TASK = 20, 2  # and so many more for each task of the run
LEAST_ADDRESSES = 2_400_000_000  # bytes
LEAST_THREADS = 40
LEAST_MEMORY = 700_000_000  # bytes
LEAST_SHM = 256 << 20  # bytes, for NCCL between the GPUs of one machine
_UNEQUAL = 1.5  # times as many processors: every step waits for the slowest


def of_limits(seen: Seen, needs: Needs) -> Iterator[CheckReported]:
    """A `limits` that fails for each limit that is too low; one that is fine where they are known."""
    wrong = list(_wrong(seen, LEAST_FILES + FILES_OF_A_TASK * needs.tasks))
    yield from wrong
    if not wrong and seen.imported is not None and seen.imported.limits:
        yield seen.says(Check.LIMITS, Level.OK, "ok")


def of_processors(seen: Sequence[Seen]) -> Iterator[CheckReported]:
    """Hosts with far fewer processors than most: the others wait for them in every step."""
    counts = {one.name: one.facts.cpus / max(1, one.host.tasks) for one in seen if one.facts.cpus}
    if any(one.facts.gpus for one in seen) or len(counts) < 2:
        return  # there they matter less
    usual = Counter(counts.values()).most_common(1)[0][0]
    others = fold(name for name, number in counts.items() if number == usual)
    for one in seen:
        number = counts.get(one.name)
        if number is not None and number * _UNEQUAL <= usual:
            why = f"{others}: {usual:g}; every step waits for the slowest host"
            hint = f"leave {one.name} out: `--exclude {one.name}`; or raise its quota"
            yield one.says(Check.CPUS, Level.WARN, f"{number:g} per task", why, hint)


def _wrong(seen: Seen, least_files: int) -> Iterator[CheckReported]:
    limits = seen.imported.limits if seen.imported is not None else {}
    files, space, threads = limits.get("nofile"), limits.get("as"), limits.get("nproc")
    if files is not None and files < least_files:
        yield _fail(
            seen, f"{files} open files", "a task needs one for each peer and for its data", "-n", 4096
        )
    if space is not None and space < LEAST_ADDRESSES:
        found = f"{size(space)} of address space"
        yield _fail(
            seen, found, "TensorFlow aborts while it is imported, or as it begins to train", "-v", "unlimited"
        )
    used = seen.imported.threads if seen.imported is not None else None
    if (
        threads is not None
        and used is not None
        and seen.hello.user != "root"
        and threads - used < LEAST_THREADS
    ):
        found = f"{max(0, threads - used)} more threads"
        why = f"this user may have {threads} and has {used}; TensorFlow aborts when it cannot start one"
        yield _fail(seen, found, why, "-u", 4096)
    yield from _memory(seen)


def _memory(seen: Seen) -> Iterator[CheckReported]:
    available, need = seen.facts.available, LEAST_MEMORY * max(1, seen.host.tasks)
    if available is not None and available < need:
        why = f"a task that trains a small model takes {size(LEAST_MEMORY)}; the kernel would kill it"
        hint = "end what uses it: `ps aux --sort -rss | head`; or raise the container's limit"
        yield seen.says(Check.MEMORY, Level.FAIL, f"{size(available)} of memory left", why, hint)
    shm = seen.facts.shm
    if len(seen.facts.gpus) > 1 and shm is not None and shm < LEAST_SHM:
        why = "NCCL exchanges gradients between the GPUs of a machine through it"
        hint = "`docker run --shm-size=1g`, or `mount -o remount,size=1g /dev/shm` as root"
        yield seen.says(Check.SHM, Level.FAIL, f"{size(shm)} in /dev/shm", why, hint)


def _fail(seen: Seen, found: str, why: str, option: str, to: object) -> CheckReported:
    hint = (
        f"set `setup` under [job] to `ulimit {option} {to}`; where that is refused, /etc/security/limits.conf"
    )
    return seen.says(Check.LIMITS, Level.FAIL, found, why, hint)
