"""Eight login shells with eight startup files: our agent responds, or the error names the startup file.

sshd is real; a ForceCommand replaces the login's shell, which runs as sshd would run it.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.connectors import Connectors
from orchestrator.errors import HostError
from orchestrator.fleet.session import Session
from orchestrator.model import Host
from orchestrator.rehearsal import Cluster

# Shells, and the startup file each reads when sshd runs a command; "" for none.
SHELLS = {
    "bash": ".bashrc", "dash": "", "zsh": ".zshenv", "fish": ".config/fish/config.fish",
    "csh": ".cshrc", "tcsh": ".tcshrc", "ksh": "", "busybox": "",
}  # fmt: skip
WORKS, REPLACED, WAITS = (
    "",
    "a startup file (or a ForceCommand) replaces or ends",
    "a startup file may wait, or start",
)
GUARD = "case $- in *i*) ;; *) return ;; esac"
GO_ON = {"fish", "csh", "tcsh"}  # where `exit` ends the file, but the command still runs
READ = {"fish": "read x", "csh": "set x = $<", "tcsh": "set x = $<"}
FILES = {
    "plain": ("", WORKS),
    "noise": ("echo Welcome; echo quota >/dev/null; printf 'a\\n\\n'", WORKS),
    "much on stderr": ("sh -c 'head -c 20000000 /dev/zero >&2'", WORKS),
    "another shell": ("exec dash", WAITS),
    "interactive": ("exec bash --norc -i", WAITS),
    "tmux": ("exec tmux new -As main", REPLACED),
    "exit": ("exit", REPLACED),
    "read": ("read -r x", WAITS),
    "terminal": ("stty -echo; sleep 1", WORKS),
}


def answer(host: Host, limit: float) -> tuple[str, str]:
    """Return "" if the agent responds, otherwise the reason and the advice."""
    with closing(Connectors()) as connectors:
        session = Session(host, connectors.connect(host, 60), lambda _: None)
        with closing(session):
            try:
                session.start(limit)
            except HostError as error:
                return error.why, error.hint or ""
    return WORKS, ""


def write(home: Path, shell: str, file: str) -> str:
    """Write a startup file that the shell reads; return the outcome."""
    text, outcome = FILES[file]
    if not (name := SHELLS[shell]):
        return WORKS
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text((READ.get(shell, text) if file == "read" else text) + "\n")
    return WORKS if file == "exit" and shell in GO_ON else outcome


@pytest.mark.parametrize(
    ("shell", "message", "advice"),
    [
        ("/usr/sbin/nologin", "the account's shell does not allow this command; ", "`chsh -s /bin/bash`"),
        ("/bin/rbash", "the account's shell does not allow this command; ", "`chsh -s /bin/bash`"),
        ("/bin/false", "it ended with status 1", "`chsh -s /bin/bash`"),
        ("echo Password change required but no TTY available.;", "its password", "asks for a new one"),
    ],
)
def test_an_account_without_a_usable_shell_is_reported(shell: str, message: str, advice: str) -> None:
    with Cluster(1, options={"ForceCommand": f'{shell} -c "$SSH_ORIGINAL_COMMAND"'}) as cluster:
        why, hint = answer(cluster.hosts[0], 60)
    assert message in why
    assert advice in hint
    assert (GUARD in hint) == (shell == "/bin/false")  # which a startup file may resemble


@pytest.mark.parametrize("shell", SHELLS)
def test_a_startup_file_lets_our_agent_reply_or_is_named(shell: str) -> None:
    """One host per file, all at once."""
    if shutil.which(shell) is None or shutil.which("tmux") is None:
        pytest.skip(f"there is no {shell} or no tmux here; `scripts/setup tests` installs them")
    words = "busybox sh" if shell == "busybox" else shell
    files = list(FILES) if SHELLS[shell] else ["plain"]
    command = f'exec {words} -c "$SSH_ORIGINAL_COMMAND"'
    with Cluster(len(files), options={"ForceCommand": command}) as cluster:
        expected = {
            file: write(cluster.folder / f"home-{number}", shell, file)
            for number, file in enumerate(files, 1)
        }
        limits = [6 if expected[file] == WAITS else 60 for file in files]
        with ThreadPoolExecutor(len(files)) as pool:
            answers = dict(zip(files, pool.map(answer, cluster.hosts, limits), strict=True))
    for file, (why, hint) in answers.items():
        assert (why == WORKS) == (expected[file] == WORKS), (file, why)
        assert expected[file] in why, file
        assert expected[file] == WORKS or GUARD in hint, file
        assert "import" not in why, file  # no text of ours was executed
