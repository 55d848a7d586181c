"""A run's working folder on a node, made of trees that are there."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from orchestrator.wire.fields import Count, Digest, Folder, Reply
from orchestrator.wire.request import Request, expect


class JobNeeds(Struct, frozen=True, kw_only=True):
    """A job's program (None: not asked), and paths among its arguments."""

    program: str | None
    python: str
    setup: str | None
    paths: Sequence[str] = ()


class Had(Reply, frozen=True):
    """Tells if the program is there, and which paths, by their places, are not."""

    program: bool
    paths: tuple[Count, ...]


class Work(Reply, frozen=True):
    work: Folder
    missing: tuple[Digest, ...]
    made: bool
    had: Had | None = None


class WorkMake(Request[Work], frozen=True, kw_only=True):
    """Make the run's working folder from the tree `digest`, where those in `also` are there too.

    With `needs` the host says what it has of them; where the program or a package is missing, or without
    `makes`, it looks for no tree and makes nothing.
    """

    OP = "work_make"
    workdir: str
    run: str
    digest: str
    also: Sequence[str]
    data: Sequence[str] = ()  # that the run reads: `clean` leaves it alone while the run lives
    needs: JobNeeds | None = None
    makes: bool = True

    def check(self, reply: Work) -> None:
        expect(set(reply.missing) <= {self.digest, *self.also}, "it misses trees that nobody asked for")
        expect((reply.had is None) == (self.needs is None), "it tells what it has, or not, as nobody asked")
        if self.needs is not None and reply.had is not None:
            _check_had(self.needs, reply.had)


def _check_had(needs: JobNeeds, had: Had) -> None:
    expect(all(place < len(needs.paths) for place in had.paths), "it names paths that it was not asked for")
