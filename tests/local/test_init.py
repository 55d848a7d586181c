"""`orchestrate init` with unknown names and unusable files."""

import errno
import os
from pathlib import Path

import pytest

from orchestrator.cli import init
from orchestrator.cli.args.parser import parse
from orchestrator.errors import ExitStatus, UsageError, unless_refused, worded
from tests import command
from tests.verbs import call


def test_an_unknown_name_is_an_error_rather_than_an_endless_search(tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    options = ["--ssh-config", "config", "--yes", "--no-preflight"]
    words = ("init", *options, "no-such-host.invalid")
    done = command.run(words, tmp_path, {**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 3, done.stderr
    assert "no-such-host.invalid" in done.stderr


def test_a_local_failure_has_its_own_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no `ssh`
    for words in (["init", "--no-preflight", "--yes", "gpu-01"], ["preflight"], ["clean", "--dry-run"]):
        done = call(words, tmp_path, tmp_path / "state")
        assert done.status == ExitStatus.HERE, done.err
        assert "there is no program `ssh`" in done.err
    for number, status in ((errno.EROFS, ExitStatus.HERE), (errno.EACCES, ExitStatus.USAGE)):
        with pytest.raises(UsageError) as caught, unless_refused("cannot make it", ""):
            raise OSError(number, os.strerror(number))
        assert worded(caught.value).status == status


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (["gpu-01", "a=b"], 'a host may have letters, .* not "a=b"', "`orchestrate init gpu-01 gpu-02`"),
        (["--ssh-config", "nothing", "gpu-01"], "cannot read ", "check the path"),
        (["--ssh-config", "open", "gpu-01"], "open is not used", "chmod go-w"),
    ],
)
def test_invalid_arguments_of_init_are_refused(
    words: list[str], what: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open").touch()
    (tmp_path / "open").chmod(0o666)
    with pytest.raises(UsageError, match=what) as caught:
        init.main(parse(["init", *words]))
    assert hint in caught.value.hint
    assert not (tmp_path / "hosts.toml").exists()
