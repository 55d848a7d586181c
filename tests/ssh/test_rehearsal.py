"""The embedded cluster leaves nothing behind, however it ends."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.processes import cmdline, environ, pids
from tests.ssh.runs.desk import until

REPOSITORY = Path(__file__).resolve().parents[2]

# Hosts that leave the processes hardest to find: double-forked, in their own session, ignoring TERM.
PROGRAM = """
import sys, time
from orchestrator.connectors import Connectors
from orchestrator.rehearsal import Cluster
with Cluster(2) as cluster:
    for host in cluster.hosts:
        link = Connectors().connect(host, 20)
        code = "(trap '' TERM HUP; exec setsid sleep 98765.4321) </dev/null >/dev/null 2>&1 &"
        assert link.open(["sh", "-c", code]).wait(10) == 0
    print(cluster.folder, flush=True)
    sys.stdin.read()
"""


def traces(folder: str) -> list[str]:
    """Return the cluster's processes and its folder."""
    processes = [str(pid) for pid in pids() if folder.encode() in environ(pid) + cmdline(pid)]
    return [folder, *processes] if Path(folder).exists() else processes


@pytest.mark.parametrize("how", ["leave", signal.SIGKILL])
def test_the_rehearsal_leaves_no_trace(how: str | signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin
    assert process.stdout
    folder = process.stdout.readline().decode().strip()
    # The watcher, SSH servers, sleepers, and the folder; during exec a sleeper has no command line.
    until("all of it is there", lambda: len(traces(folder)) > 4)
    if isinstance(how, signal.Signals):
        process.send_signal(how)
    process.stdin.close()
    process.wait(timeout=20)
    process.stdout.close()
    until("nothing is left", lambda: not traces(folder))


UNPRIVILEGED = """
from orchestrator.connectors import Connectors
from orchestrator.rehearsal import Cluster
with Cluster(2) as cluster:
    for host in cluster.hosts:
        link = Connectors().connect(host, 20)
        channel = link.open(["id", "-u"])
        print(channel.recv(100).decode().strip(), channel.wait(5))
        link.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_rehearsal_works_without_root() -> None:
    """As a user that exists only in our mount namespace, and sees the clone at any path."""
    blank = tempfile.TemporaryDirectory(prefix="two words")
    with blank as folder, tempfile.TemporaryDirectory() as clone:
        os.chown(folder, 4242, 4242)
        Path(clone).chmod(0o755)
        python = Path(sys.executable)
        if REPOSITORY in python.parents:
            python = clone / python.relative_to(REPOSITORY)
        users = Path(folder) / "passwd"
        users.write_text(f"{Path('/etc/passwd').read_text()}rehearser:x:4242:4242::{folder}:/bin/sh\n")
        mounts = 'mount --bind "$1" /etc/passwd && mount --bind "$2" "$3"'
        script = f'{mounts} && cd "$4" && shift 4 && exec setpriv "$@"'
        who = ["--reuid", "4242", "--regid", "4242", "--clear-groups", "env", f"PYTHONPATH={clone}"]
        who += [f"TMPDIR={folder}"]
        places = [str(users), str(REPOSITORY), clone, folder]
        argv = ["unshare", "-m", "sh", "-c", script, "-", *places, *who, str(python), "-c"]
        done = subprocess.run([*argv, UNPRIVILEGED], capture_output=True, text=True, check=False)
        if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
            pytest.skip("no mount namespaces here")
        assert (done.stdout, done.stderr) == ("4242 0\n4242 0\n", "")
        assert [entry.name for entry in Path(folder).iterdir()] == ["passwd"]
