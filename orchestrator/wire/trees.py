"""The code of a run on a node: trees by their digest, and the working folder that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from orchestrator.wire.fields import Count, Digest, Folder, Reply
from orchestrator.wire.request import LARGE, Nothing, Request, expect

_TOO_MUCH = "it misses trees that nobody asked for"


class JobNeeds(Struct, frozen=True, kw_only=True):
    """What a job starts with: its program (None: not asked), and paths among its arguments."""

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


class Sealed(Reply, frozen=True):
    """A tree has its name."""

    work: Work | None = None  # where it was asked for


class ForRun(Struct, frozen=True, kw_only=True):
    """The run that a tree is for: its folder is made as soon as the tree is there, as by `work_make`."""

    run: str
    also: Sequence[str]
    data: Sequence[str] = ()


class Incoming(Reply, frozen=True):
    present: bool = False  # the tree is there: nothing is to be sent
    made: bool = False  # of what came along
    work: Work | None = None  # made, too
    incoming: Folder | None = None
    base: Folder | None = None  # a tree that has versions of files that are missing
    missing: tuple[Count, ...] = ()  # places in the manifest

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self.present == (self.incoming is None), "a tree is there and is not")
        expect(self.present or not self.made, "a tree was made and is not there")
        expect(self.made or self.work is None, "a folder was made from a tree that was not")


class TreeBegin(Request[Incoming], frozen=True, kw_only=True):
    """Make the folder that is to become a tree, with `reuse` of the files that other trees there have.

    The payload is a tar stream of what will probably be missing: with it the tree is made, if that is all.
    """

    OP = "tree_begin"
    HEAD = LARGE
    workdir: str
    digest: str
    manifest: Sequence[Mapping[str, object]]
    reuse: bool
    work: ForRun | None = None

    def check(self, reply: Incoming) -> None:
        _check(self.work, reply.work, self.digest)
        expect(
            all(place < len(self.manifest) for place in reply.missing), "it misses what is not in the tree"
        )
        expect(len(set(reply.missing)) == len(reply.missing), "it misses something twice")


class TreeTar(Request[Nothing], frozen=True, kw_only=True):
    """A piece of a tar stream, as payload: what the seal adds to what is there."""

    OP = "tree_tar"
    workdir: str
    digest: str
    more: bool


class TreeSeal(Request[Sealed], frozen=True, kw_only=True):
    """Verify what has come against the manifest of `tree_begin`, and give it its name."""

    OP = "tree_seal"
    workdir: str
    digest: str
    work: ForRun | None = None

    def check(self, reply: Sealed) -> None:
        _check(self.work, reply.work, self.digest)


class TreeDrop(Request[Nothing], frozen=True, kw_only=True):
    """Remove what came of a tree that was given up."""

    OP = "tree_drop"
    workdir: str
    digest: str


class WorkMake(Request[Work], frozen=True, kw_only=True):
    """Make the run's working folder from the trees `digests`, where `also` those in `also` are there.

    With `needs` the host says what it has of them; where the program or a package is missing, or without
    `makes`, it looks for no tree and makes nothing.
    """

    OP = "work_make"
    workdir: str
    run: str
    digests: Sequence[str]
    also: Sequence[str]
    data: Sequence[str] = ()  # that the run reads: `clean` leaves it alone while the run lives
    needs: JobNeeds | None = None
    makes: bool = True

    def check(self, reply: Work) -> None:
        expect(set(reply.missing) <= {*self.digests, *self.also}, _TOO_MUCH)
        expect((reply.had is None) == (self.needs is None), "it tells what it has, or not, as nobody asked")
        if self.needs is not None and reply.had is not None:
            _check_had(self.needs, reply.had)


def _check(asked: ForRun | None, made: Work | None, digest: str) -> None:
    if made is not None:
        expect(asked is not None, "it made a folder that nobody asked for")
        expect(asked is None or set(made.missing) <= {digest, *asked.also}, _TOO_MUCH)


def _check_had(needs: JobNeeds, had: Had) -> None:
    expect(all(place < len(needs.paths) for place in had.paths), "it names paths that it was not asked for")
