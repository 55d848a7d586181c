"""From a login shell to hello: whatever the shell, the Python, the locale and the noise."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.node.serve import bootstrap
from tests.node.agent_client import OLD_PYTHON
from tests.node.lab import Lab
from tests.node.test_agent_store import make_tree
from tests.ports import free_port

old_python = pytest.mark.skipif(OLD_PYTHON is None, reason="no Python 3.8 here")


@old_python
def test_python_3_8_runs_the_agent_and_a_task(lab: Lab) -> None:
    agent = lab.agent(python=OLD_PYTHON)
    assert agent.hello["python"].startswith("3.8.")
    lab.start(agent, "sh", "-c", "echo from an old one")
    lab.follow(agent, "worker/0")
    assert lab.final(agent)["exit_code"] == 0
    assert agent.log("worker/0") == b"from an old one\n"
    port, workdir = free_port(), str(lab.workdir)
    assert agent.request("facts", python="python3", workdir=workdir)["python"]["ok"]
    assert agent.request("listen", ports=[port], nonce="n")["listening"] == [port]
    targets = [{"host": "h", "address": address, "port": port} for address in ("127.0.0.1", "localhost")]
    results = agent.request("probe", nonce="n", timeout=5.0, targets=targets)["results"]
    assert [result["tcp"] for result in results] == [True, True]
    make_tree(lab, agent, {"train.py": b"1"}, "aa")
    assert agent.request("work_make", workdir=workdir, run=lab.run, digest="aa")


def test_a_python_that_is_too_old_says_so() -> None:
    loader = (Path(bootstrap.__file__).parent / "loader.py").read_text()
    old = loader.replace("sys.version_info < (3, 8)", "sys.version_info < (99, 0)")
    done = subprocess.run(["python3", "-c", old], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the agent needs Python 3.8 or newer" in done.stderr
    assert done.stdout == ""


def test_a_login_without_utf8_changes_no_byte(lab: Lab) -> None:
    agent = lab.agent(env={"LC_ALL": "en_US.ISO-8859-1", "LANG": ""})
    assert agent.hello["state"] == str(lab.state)  # its folder's name has an é
    assert (lab.state / "runs").is_dir()


def test_what_it_compiled_is_kept_and_never_believed_when_it_is_not_as_we_wrote_it(lab: Lab) -> None:
    code = lab.state / "code"
    lab.agent().close()
    first = code.read_bytes()
    lab.agent().close()
    assert code.read_bytes() == first
    for damaged in (first[:-9], first[:3], b"", b"\0" * len(first), first[:99] + b"?" + first[100:]):
        code.write_bytes(damaged)
        lab.agent().close()
        assert code.read_bytes() == first, damaged[:4]
    code.unlink()
    lab.state.chmod(0o755)
    os.mkfifo(code)  # nobody waits for its other end
    refused = lab.agent()
    assert "open to other users" in refused.hello["state_error"]["what"]
    refused.close()
    assert code.is_fifo()
    code.unlink()
    lab.state.rename(lab.folder / "elsewhere")
    lab.state.symlink_to(lab.folder / "elsewhere")
    (lab.folder / "elsewhere").chmod(0o700)
    lab.agent().close()
    assert not code.exists()  # who made the link may turn it
