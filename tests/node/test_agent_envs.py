"""Environments that the agent creates with a real uv from handmade wheels."""

import hashlib
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.envs import uv
from orchestrator.node.stock import envs
from tests.node.agent_client import AgentClient, AgentError
from tests.wheels import wheel

LOCK = b"small==1.0\n"
NUMPY = b"numpy==1.0\n"  # imported before an environment is accepted


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels of ours"
    folder.mkdir()
    wheel(folder, "small", "1.0", "answer = 42\n")
    return folder


def fields(tmp_path: Path, wheels: Path, **more: Any) -> dict[str, Any]:
    return {
        "workdir": str(tmp_path / "work dir"),
        "name": "0123456789abcdef",
        "uv": str(uv.binary()),
        "interpreter": "/usr/bin/python3",
        "wheels": str(wheels),
        **more,
    }


def test_files_from_an_index_must_match_the_hash_in_the_lock(tmp_path: Path, wheels: Path) -> None:
    """Sent files were checked before: a wheel built from a source distribution has a different hash."""
    served = wheels.rename(tmp_path / "index")
    (one,) = served.glob("*.whl")
    good = hashlib.sha256(one.read_bytes()).hexdigest()
    env = {"UV_CACHE_DIR": str(tmp_path / "cache")}
    with AgentClient(tmp_path / "state", env=env) as agent:
        wanted = {**fields(tmp_path, served, index=served.as_uri()), "wheels": None}
        bad = b"small==1.0 --hash=sha256:%s\n" % (b"0" * 64)
        with pytest.raises(AgentError) as caught:
            agent.request("env_make", bad, ask_first=True, **wanted)
        assert "hash mismatch" in caught.value.why.lower()
        assert not agent.request("env_look", **wanted)["ready"]
        assert agent.request("env_make", b"small==1.0 --hash=sha256:%s\n" % good.encode(), **wanted)[
            "versions"
        ]
        sent = fields(tmp_path, served, name="f" * 16)
        assert agent.request("env_make", bad, **sent)["versions"]


def test_an_index_without_the_locked_packages_counts_as_unavailable(tmp_path: Path, wheels: Path) -> None:
    """The controller resolved it, perhaps with its own index, and can send the packages."""
    wanted = {**fields(tmp_path, wheels), "wheels": None, "index": wheels.as_uri(), "ask_first": True}
    with AgentClient(tmp_path / "state") as agent, pytest.raises(AgentError) as caught:
        agent.request("env_make", b"small==9.0\n", **wanted)
    assert caught.value.kind == "no-index"
    assert caught.value.why.count("No solution found") == 1, caught.value.why
    assert str(tmp_path) not in caught.value.why, "equal on each host, to be shown once"
    assert 'via = "controller"' in caught.value.hint
    of_others = b"other==2.0 ; sys_platform == 'win32'\nsmall==1.0\n"
    with AgentClient(tmp_path / "state") as agent:
        assert agent.request("env_make", of_others, **wanted)["versions"]


def test_a_failing_import_rejects_the_environment(tmp_path: Path, wheels: Path) -> None:
    wheel(wheels, "numpy", "1.0", "raise RuntimeError('a broken build')\n")
    with AgentClient(tmp_path / "state") as agent, pytest.raises(AgentError) as caught:
        agent.request("env_make", NUMPY, **fields(tmp_path, wheels))
    assert "a broken build" in caught.value.why
    assert envs.MAKING not in caught.value.why, "it has another name on each host"
    assert os.listdir(tmp_path / "work dir" / "envs") == []


@pytest.mark.parametrize(("lock", "backend"), [("jax==1.0", "jax"), ("torch==1.0", "torch"), ("", "numpy")])
def test_keras_imports_an_available_backend(tmp_path: Path, wheels: Path, lock: str, backend: str) -> None:
    wheel(wheels, "keras", "1.0", f"import os\nassert os.environ['KERAS_BACKEND'] == {backend!r}\n")
    for name in ("jax", "torch"):
        wheel(wheels, name, "1.0", "")
    with AgentClient(tmp_path / "state", env={"PYTHONHOME": "/nowhere"}) as agent:
        made = agent.request("env_make", f"keras==1.0\n{lock}\n".encode(), **fields(tmp_path, wheels))
    assert "keras" in made["versions"]


def test_a_killed_build_is_repeated_and_leaves_nothing(tmp_path: Path, wheels: Path) -> None:
    envs = tmp_path / "work dir" / "envs"
    slow = tmp_path / "uv"
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "gate")
    slow.write_text(f'#!/bin/sh\necho at it >"{tmp_path}/begun"\nread line <"{tmp_path}/gate"\n')
    slow.chmod(0o755)
    with AgentClient(tmp_path / "state") as agent:
        agent.send("env_make", LOCK, **fields(tmp_path, wheels, uv=str(slow)))
        assert (tmp_path / "begun").read_text() == "at it\n"  # a fifo: this blocks until its writer opens it
        agent.process.send_signal(signal.SIGKILL)
        agent.process.wait()
    with AgentClient(tmp_path / "state") as agent:
        assert any(name.startswith(".making-") for name in os.listdir(envs))
        assert agent.request("env_make", LOCK, **fields(tmp_path, wheels))["versions"]
    assert sorted(os.listdir(envs)) == ["0123456789abcdef"]


def behind_a_proxy(tmp_path: Path) -> Path:
    """A uv that needs the machine's certificates, as behind a proxy that signs for all sites."""
    path = tmp_path / "behind a proxy"
    failure = "echo 'invalid peer certificate: UnknownIssuer' >&2; exit 2"
    real = shlex.quote(str(uv.binary()))
    path.write_text(f'#!/bin/sh\n[ "$UV_SYSTEM_CERTS" ] || {{ {failure}; }}\nexec {real} "$@"\n')
    path.chmod(0o755)
    return path


def test_the_certificates_of_the_machine_are_used_too(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_SYSTEM_CERTS", raising=False)
    program = behind_a_proxy(tmp_path)
    with AgentClient(tmp_path / "state") as agent:
        assert agent.request("env_make", LOCK, **fields(tmp_path, wheels, uv=str(program)))["versions"]
    monkeypatch.setattr(uv, "binary", lambda: program)
    assert uv.run("show its version", ["--version"]).startswith("uv ")


def test_an_environment_without_its_interpreter_is_rebuilt(tmp_path: Path, wheels: Path) -> None:
    with AgentClient(tmp_path / "state") as agent:
        wanted = fields(tmp_path, wheels)
        agent.request("env_make", LOCK, **wanted)
        (tmp_path / "work dir" / "envs" / "0123456789abcdef" / "bin" / "python").unlink()
        assert not agent.request("env_look", **wanted)["ready"]
        assert agent.request("env_make", LOCK, **wanted)["versions"]
        assert agent.request("env_look", **wanted)["ready"]


def test_a_missing_python_gets_three_suggestions(tmp_path: Path, wheels: Path) -> None:
    with AgentClient(tmp_path / "state") as agent:
        found = agent.request("env_find", **fields(tmp_path, wheels, python=">=3.8"))
        assert found["version"].startswith("3.")
        with pytest.raises(AgentError) as caught:
            agent.request("env_find", **fields(tmp_path, wheels, python="3.99"))
    assert caught.value.kind == "no-python"
    assert "`python` under [env]" in caught.value.hint
    assert f"`{uv.binary()} python install '3.99'`" in caught.value.hint


def test_a_disk_that_permits_no_programs_is_reported(tmp_path: Path, wheels: Path) -> None:
    program = tmp_path / "uv"
    program.touch(0o644)  # as with `noexec`
    with AgentClient(tmp_path / "state") as agent, pytest.raises(AgentError) as caught:
        agent.request("env_find", **fields(tmp_path, wheels, python="3", uv=str(program)))
    assert str(caught.value) == f"env: cannot run {program} (Permission denied)"
    assert "noexec" in caught.value.hint
