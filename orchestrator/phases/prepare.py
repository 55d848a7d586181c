"""Sets of tensorflow-datasets as folders on this machine: found here, or prepared once on a host.

A host prepares where TensorFlow is: with the set's real builder, from the internet or from original files
that are sent to it. The result comes back here and is kept; from then on it is data like any other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator import wire
from orchestrator.errors import ClusterError, HostError, Trouble, UsageError
from orchestrator.events import DataStepped
from orchestrator.fleet import Fleet, Session
from orchestrator.model import Data, Host
from orchestrator.node.base.fault import reason
from orchestrator.phases.context import Emit
from orchestrator.plainfile import at_home, make_folder
from orchestrator.sync import DataPath, fetch, push, read_data, remove
from orchestrator.sync.builtin import read_builtin

ORIGINALS = tuple(
    f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
)
_INFO = "dataset_info.json"  # a prepared set is <data_dir>/<name>/[<config>/]<version> with this file
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_TRIES = 4  # hosts that are asked to prepare
_LIMIT = 2 * 3600.0  # seconds
_LINES = 12
_SAID = 1 << 14  # bytes of what the builder says that are kept

_MODULE = "`orchestrate setup` with [env] makes an environment that can; or set `python` to one"
_NOWHERE = "prepare it where there is internet, and name its data_dir: `tfds_dir` under [data]"


@dataclass(frozen=True)
class SetName:
    """`name/config:version`, the latter two optional."""

    name: str
    config: str = ""
    version: str = ""

    @classmethod
    def parse(cls, text: str) -> SetName:
        left, _, version = text.partition(":")
        name, _, config = left.partition("/")
        return cls(name, config, version)

    def __str__(self) -> str:
        config = f"/{self.config}" if self.config else ""
        return f"{self.name}{config}{':' if self.version else ''}{self.version}"


def own_data_dir(given: str | None) -> Path:
    """Where this machine has its prepared sets."""
    return at_home(given or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def find_set(root: Path, wanted: SetName) -> Path | None:
    """The folder of a prepared set below a data_dir, its newest version unless one is named."""
    above = root / wanted.name / wanted.config
    found = _versions(above)
    if not found and not wanted.config and above.is_dir():  # a set whose only form has a name
        configs = [child for child in sorted(above.iterdir()) if _versions(child)]
        found = _versions(configs[0]) if len(configs) == 1 else []
    if wanted.version:
        found = [path for path in found if path.name == wanted.version]
    return found[-1] if found else None


def _versions(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [one for one in folder.iterdir() if _VERSION.fullmatch(one.name) and (one / _INFO).is_file()]
    return sorted(found, key=lambda one: tuple(map(int, one.name.split("."))))


class NotPreparedError(ClusterError):
    """A set that is not on this machine yet, and nobody was to prepare it."""


def sources(data: Data, hosts: Sequence[Host], cache: Path, maker: Maker | None = None) -> list[DataPath]:
    """Return what [data] names, as files of this machine; without a maker nothing is prepared.

    Raise UsageError, ClusterError (NotPreparedError without a maker) or HostError.
    """
    named = [("files", given) for given in data.paths] + [("keras/datasets", given) for given in data.keras]
    found = [DataPath(f"{below}/{given.rpartition('/')[2]}", at_home(given)) for below, given in named]
    for text in data.sets:
        wanted = SetName.parse(text)
        folder = _have(wanted, data, hosts, cache, maker)
        config = "" if folder.parent.name == wanted.name else f"{folder.parent.name}/"
        found.append(DataPath(f"tfds/{wanted.name}/{config}{folder.name}", folder))
    return found


def _have(wanted: SetName, data: Data, hosts: Sequence[Host], cache: Path, maker: Maker | None) -> Path:
    """The folder of a prepared set; prepared on the first host that can."""
    root = own_data_dir(data.tfds_dir)
    originals = _originals(wanted, data)
    if originals is None and (found := find_set(root, wanted)) is not None:
        return found
    kept = cache / "sets" / _recipe(wanted, originals)
    if (found := find_set(kept, wanted)) is not None:
        return found
    if maker is None:
        raise NotPreparedError(
            f"the set {wanted} is not prepared yet",
            why=f"it is neither in {root} nor kept from an earlier time",
            hint="`orchestrate push`",
        )
    with _alone(kept):
        last: HostError | None = None
        asked = [host for host in hosts if host.name in maker.fleet.sessions][:_TRIES]
        while (found := find_set(kept, wanted)) is None and asked:
            try:
                maker.make(maker.fleet.sessions[asked.pop(0).name], wanted, originals, kept)
            except HostError as error:
                last = error
    if found is not None:
        return found
    raise last or ClusterError(f"no host can prepare the set {wanted}", hint="`orchestrate preflight`")


def _originals(wanted: SetName, data: Data) -> Path | None:
    """The folder with the original files of MNIST or Fashion-MNIST, where one is named."""
    named = {"mnist": data.mnist, "fashion_mnist": data.fashion_mnist}.get(wanted.name)
    if named is not None:
        folder = at_home(named)
        missing = [name for name in ORIGINALS if not (folder / name).is_file()]
        if missing:
            raise UsageError(
                f"{folder} does not hold the files of {wanted.name}",
                why=f"it lacks {', '.join(missing)}",
                hint=f"name the folder with {ORIGINALS[0]} and the three others under [data]",
            )
        return folder
    return None


def _recipe(wanted: SetName, originals: Path | None) -> str:
    """A name for what is prepared from this."""
    whole = hashlib.sha256(str(wanted).encode())
    for name in ORIGINALS if originals is not None else ():
        assert originals is not None
        with (originals / name).open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return f"{wanted.name}-{whole.hexdigest()[:16]}"


@contextmanager
def _alone(kept: Path) -> Iterator[None]:
    """Hold a lock, so that one of several commands prepares and the others find it prepared."""
    try:
        make_folder(kept.parent)
        lock = kept.with_name(f".{kept.name}.lock").open("w")
    except OSError as error:
        raise ClusterError(
            f"cannot write {kept.parent}",
            why=reason(error),
            hint="set XDG_CACHE_HOME to a folder of yours on a disk with space",
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Maker:
    """Has a host make a set, in its training environment."""

    fleet: Fleet
    setup: str | None  # shell text of the job
    emit: Emit

    def make(self, session: Session, wanted: SetName, originals: Path | None, kept: Path) -> None:
        """Make it below `kept`; raise HostError."""
        host = session.host
        self.emit(DataStepped(host.name, f"prepares {wanted}", 0, 0))
        tree = read_builtin()
        push(session, tree, f"{host.workdir}/trees/{tree.digest}")
        made = f"{host.workdir}/data/.incoming-prepare-{secrets.token_hex(6)}"
        try:
            if originals is not None:
                files = read_data(
                    [DataPath(name, originals / name) for name in ORIGINALS], kept.parent / "digests"
                )
                push(session, files, f"{made}/downloads/manual", mutable=True)
            said = self._run(session, wanted, tree.digest, made)
            try:
                fetch(session, f"{made}/{wanted.name}", kept / wanted.name)
            except HostError as error:
                if error.kind != Trouble.MISSING:
                    raise
            # A set that worker_entry cannot train on is prepared all the same: it is there, or it is not.
            if find_set(kept, wanted) is None:
                raise HostError(
                    host.name,
                    f"cannot prepare the set {wanted}",
                    kind="data",
                    why=said,
                    hint=_MODULE if "No module named" in said else _NOWHERE,
                )
        finally:
            remove(session, made)

    def _run(self, session: Session, wanted: SetName, tree: str, made: str) -> str:
        """Run the real builder there; what it said at the end."""
        host = session.host
        code = _from_home(f"{host.workdir}/trees/{tree}")
        variables = [f"PYTHONPATH={code}", "PYTHONDONTWRITEBYTECODE=1", "TF_CPP_MIN_LOG_LEVEL=3"]
        program = [_from_home(host.python), "-m", "worker_entry.prepare", str(wanted)]
        argv = ["env", *variables, *program, "--data-dir", _from_home(made)]
        if self.setup is not None:
            argv = ["bash", "-lc", f'{self.setup}\nexec "$@"', "bash", *argv]
        said = bytearray()

        def keep(_stream: wire.Pipe, data: bytes) -> None:
            said.extend(data)
            del said[:-_SAID]  # it may print without end

        session.on_output = keep
        try:
            end = session.request(wire.Exec(argv=tuple(argv)), timeout=_LIMIT)
        finally:
            session.on_output = lambda _stream, _data: None
        return wire.printable(end.error or _tail(bytes(said)), 2000, lines=True)


def _from_home(path: str) -> str:
    """A path that may begin with `~`, for a command, which runs in the home folder without a shell."""
    return f".{path[1:]}" if path.startswith("~/") else path


def _tail(said: bytes) -> str:
    lines = [line.rstrip() for line in said.decode("utf-8", "replace").split("\n") if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1]
    return "\n".join(lines[-_LINES:]) or "it printed nothing"
