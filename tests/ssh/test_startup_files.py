"""What 8 login shells do with 8 start-up files: our agent answers, or the error names the start-up file.

A real sshd; the shell of the login is put in its place by a ForceCommand, as sshd would run it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from orchestrator.connectors import Connectors
from orchestrator.errors import HostError
from orchestrator.fleet.session import Session
from orchestrator.rehearsal import Cluster

# The shells by what they read when sshd has them run a command; "" for nothing.
SHELLS = {
    "bash": ".bashrc", "dash": "", "zsh": ".zshenv", "fish": ".config/fish/config.fish",
    "csh": ".cshrc", "tcsh": ".tcshrc", "ksh": "", "busybox": "",
}  # fmt: skip
WORKS, REPLACED, WAITS = "", "a start-up file (or a ForceCommand) replaces or ends", "a start-up file waits"
GUARD = "case $- in *i*) ;; *) return ;; esac"
GO_ON = {"fish", "csh", "tcsh"}  # where `exit` ends the file, and the command runs all the same
READ = {"fish": "read x", "csh": "set x = $<", "tcsh": "set x = $<"}
FILES = {
    "plain": ("", WORKS),
    "noise": ("echo Welcome; echo quota >/dev/null; printf 'a\\n\\n'", WORKS),
    "another shell": ("exec dash", REPLACED),
    "interactive": ("exec bash --norc -i", REPLACED),
    "tmux": ("exec tmux new -As main", REPLACED),
    "exit": ("exit", REPLACED),
    "read": ("read -r x", WAITS),
    "terminal": ("stty -echo; sleep 1", WORKS),
}


@pytest.fixture(scope="module", params=SHELLS)
def login(request: pytest.FixtureRequest) -> Iterator[tuple[str, Cluster]]:
    shell = request.param
    if shutil.which(shell) is None or shutil.which("tmux") is None:
        pytest.skip(f"there is no {shell} or no tmux here; `scripts/setup tests` installs them")
    words = "busybox sh" if shell == "busybox" else shell
    with Cluster(1, options={"ForceCommand": f'exec {words} -c "$SSH_ORIGINAL_COMMAND"'}) as cluster:
        yield shell, cluster


@pytest.mark.parametrize("file", FILES)
def test_a_start_up_file_lets_our_agent_answer_or_is_named(login: tuple[str, Cluster], file: str) -> None:
    shell, cluster = login
    text, outcome = FILES[file]
    text = READ.get(shell, text) if file == "read" else text
    read_here, home = SHELLS[shell], cluster.folder / "home-1"
    for name in filter(None, SHELLS.values()):
        (home / name).unlink(missing_ok=True)
    if read_here:
        (home / read_here).parent.mkdir(parents=True, exist_ok=True)
        (home / read_here).write_text(text + "\n")
    expected = outcome if read_here and not (file == "exit" and shell in GO_ON) else WORKS
    connectors = Connectors()
    session = Session(cluster.hosts[0], connectors.connect(cluster.hosts[0], 60), lambda _: None)
    try:
        if expected == WORKS:
            session.start(60)
            return
        with pytest.raises(HostError) as caught:
            session.start(8 if expected == WAITS else 60)
        assert expected in caught.value.why
        assert GUARD in (caught.value.hint or "")
        assert "import" not in caught.value.why  # no text of ours was executed
    finally:
        session.close()
        connectors.close()
