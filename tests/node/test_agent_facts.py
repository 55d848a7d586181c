"""Facts that a machine reports about itself."""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base import machine, procs
from tests.gpus import H100, RTX_2080, fake_nvidia
from tests.node.lab import Lab


def facts(lab: Lab, **fields: Any) -> dict[str, Any]:
    asked = {"python": sys.executable, "workdir": str(lab.workdir), "packages": [], **fields}
    return lab.agent(env=asked.pop("env_", {})).request("facts", **asked)


def test_a_broken_python_is_reported_as_a_fact(lab: Lab) -> None:
    program, crash = lab.folder / "python", lab.folder / "crash"
    program.write_text("#!/bin/sh\necho loading >&2\necho 'libpython3.so: cannot open' >&2\nexit 127\n")
    crash.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    crash.chmod(0o755)
    rows = {
        "/no/such/python": "No such file",
        "false": "ended with 1",
        "/etc/passwd": "Permission denied",
        str(program): "loading / libpython3.so: cannot open",
        str(crash): "killed by SIGSEGV",
    }
    agent = lab.agent()
    for python, words in rows.items():
        answer = agent.request("facts", python=python, workdir=str(lab.workdir), packages=["pip"])
        assert not answer["python"]["ok"]
        assert words in answer["python"]["error"]
        assert answer["packages"] == {"pip": None}
        assert answer["addresses"]  # everything else is still reported


def test_the_machine_is_described_as_by_its_own_programs(lab: Lab) -> None:
    wrapper = lab.folder / "python"
    limits = f"ulimit -f 2000000\nulimit -t {2**63 - 1}"  # the second one is none
    wrapper.write_text(f'#!/bin/sh\n{limits}\nexec {shlex.quote(sys.executable)} "$@"\n')
    wrapper.chmod(0o755)
    agent = lab.agent(python=str(wrapper))
    hardware = agent.request("facts", python=sys.executable, workdir=str(lab.workdir))["machine"]
    script = "nproc; uname -sr; sed -n 's/^MemTotal: *//p' /proc/meminfo; df -Pk /dev/shm | sed 1d"
    cpus, kernel, memory, shm = subprocess.check_output(["sh", "-c", script], text=True).splitlines()
    assert (hardware["cpus"], hardware["kernel"]) == (int(cpus), kernel)
    assert hardware["memory"] == int(memory.split()[0]) << 10
    assert 0 < hardware["shm"] <= int(shm.split()[1]) << 10
    assert hardware["ports"] == list(map(int, procs.text("/proc/sys/net/ipv4/ip_local_port_range").split()))
    assert hardware["limits"] == {"RLIMIT_FSIZE": 2000000 * 512}
    assert hardware["processor"] in procs.text("/proc/cpuinfo")


@pytest.mark.parametrize(
    ("output", "on"),
    [
        ("b true\nb false\n", ["KillUserProcesses"]),
        ("b false\nb true\n", ["RemoveIPC"]),
        ("Failed to get property\n", []),
        ("", []),
    ],
)
def test_settings_that_affect_processes_after_a_logout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, on: list[str]
) -> None:
    """With a mock of busctl: there is no systemd here."""
    busctl = tmp_path / "busctl"
    busctl.write_text(f"#!/bin/sh\n[ \"$5 $6\" = 'KillUserProcesses RemoveIPC' ] && printf {output!r}\n")
    busctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(machine, "lingers", lambda: False)
    assert machine.look()["logout"] == on
    monkeypatch.setattr(machine, "lingers", lambda: True)
    assert machine.look()["logout"] == []


def test_pip_is_not_suggested_where_it_is_missing(lab: Lab) -> None:
    venv.create(lab.folder / "env", with_pip=False)
    python = str(lab.folder / "env/bin/python")
    assert facts(lab, python=python)["python"]["no_pip"]
    next(lab.folder.glob("env/lib/python*/site-packages")).joinpath("pip").mkdir()
    assert not facts(lab, python=python)["python"]["no_pip"]


def test_package_names_are_normalized_as_in_importlib(lab: Lab) -> None:
    names = sorted({item.metadata["Name"] for item in metadata.distributions()})
    answer = facts(lab, packages=[*names, "PyTest", "mypy.extensions"])["packages"]
    assert {name: answer[name] for name in names} == {name: metadata.version(name) for name in names}
    assert answer["PyTest"] == pytest.__version__
    assert answer["mypy.extensions"] == metadata.version("mypy_extensions")


def test_setup_selects_the_python_and_may_print(lab: Lab) -> None:
    folder = lab.folder / "module bin"
    folder.mkdir()
    (folder / "trainer").symlink_to(sys.executable)
    setup = f'echo "loading {{"; export PATH="$PATH":{shlex.quote(str(folder))}'
    found = facts(lab, python="trainer", setup=setup)
    assert found["python"]["ok"], found["python"]["error"]
    assert facts(lab, setup="no-such-module load; exit 9")["python"]["ok"] is False
    failed = facts(lab, setup="no-such-module load")["setup"]
    assert failed["status"] == 127
    assert "no-such-module" in failed["words"]
    assert facts(lab, setup="echo no >&2; exit 3")["setup"] == {"status": 3, "words": "no"}
    assert facts(lab, setup="exec yes")["python"]["error"] == "it printed more than 64 MB"


def test_conda_activates_once_its_file_is_sourced(lab: Lab) -> None:
    """With a mock of conda: a function that only an interactive shell's startup file defines."""
    base, wanted = lab.folder / "miniconda3", lab.folder / "miniconda3/envs/tf/bin"
    (base / "etc/profile.d").mkdir(parents=True)
    (base / "etc/profile.d/conda.sh").write_text("conda() { PATH=~/miniconda3/envs/$2/bin:$PATH; }\n")
    (lab.folder / ".bashrc").write_text("case $- in *i*) . ~/miniconda3/etc/profile.d/conda.sh ;; esac\n")
    wanted.mkdir(parents=True)
    (wanted / "trainer").symlink_to(sys.executable)
    bare = facts(lab, python="trainer", setup="conda activate tf")
    assert (bare["python"]["ok"], bare["setup"]["status"]) == (False, 127)
    assert "conda: " in bare["setup"]["words"]
    sourced = facts(lab, python="trainer", setup=". ~/miniconda3/etc/profile.d/conda.sh; conda activate tf")
    assert (sourced["python"]["path"], sourced["setup"]["status"]) == (str(wanted / "trainer"), 0)
    by_path = facts(lab, python="~/miniconda3/envs/tf/bin/trainer")
    assert by_path["python"]["path"] == str(wanted / "trainer")


def test_background_processes_of_a_setup_are_not_waited_for(lab: Lab) -> None:
    """A daemon keeps the pipe open, but the reply has already arrived in it."""
    setup = "sleep 600 & echo ready"
    assert facts(lab, setup=setup)["python"]["ok"]
    agent = lab.agent(env={"HOME": "/no/such/home"})  # a service account has none
    found = agent.request("imports", python=sys.executable, setup=setup, env={}, modules=["json"])
    assert ([one["name"] for one in found["modules"]], found["ended"]) == (["json"], "")


def test_nvidia_smi_runs_once_and_again_without_fields_an_older_driver_refuses(lab: Lab) -> None:
    """Processes are queried if memory is in use, and reported with their owner."""
    second = RTX_2080 | {"index": "1", "uuid": "GPU-2", "name": "NVIDIA, Odd"}
    users = [{"gpu_uuid": "GPU-2", "pid": str(os.getpid())}, {"gpu_uuid": "GPU-2", "pid": "[N/A]"}]
    for cards, questions in (
        ([H100], 1),
        ([H100, H100 | {"memory.used": "[N/A]"}], 1),
        ([RTX_2080, second], 4),
    ):
        folder = lab.folder / f"bin{questions}{len(cards)}"
        found = facts(lab, env_={"PATH": fake_nvidia(folder, cards, users)})
        assert len((folder / "asked").read_text().splitlines()) == questions
        assert found["gpu_error"] == ""
        assert [one["index"] for one in found["gpus"]] == [int(card["index"]) for card in cards]
        assert [one["name"] for one in found["gpus"]] == [card["name"] for card in cards]
        assert all(
            one["fields"].items() >= card.items() for one, card in zip(found["gpus"], cards, strict=True)
        )
        assert [tuple(xid[1:3]) for xid in found["xids"]] == [
            ("0000:01:00", 31),
            ("0000:0a:00", 45),
            ("0000:01:00", 94),
        ]
    me = f"pid {os.getpid()} {procs.name(os.getpid())} (user {pwd.getpwuid(os.getuid()).pw_name})"
    assert [one["fields"]["users"] for one in found["gpus"]] == ["", me]


def test_a_failing_flooding_or_hanging_nvidia_smi_is_reported(lab: Lab) -> None:
    path = fake_nvidia(lab.folder / "bin", [H100])
    program = lab.folder / "bin" / "nvidia-smi"
    agent = lab.agent(env={"PATH": path})
    rows = {
        "echo 'No devices were found'; exit 6": "No devices were found",
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18": "version mismatch",
        "echo 'Field \"index\" is not a valid field to query.'; exit 2": '"index" is not a valid field',
        "exec sleep 60": "no answer within 0.5 s",
        "exec yes '0, GPU-1'": "it printed more than",
        "kill -9 $$": "killed by SIGKILL",
        "echo '2, x'; echo '²,,,,,,,,,,,,,,,,,,,,'; exit 0": "",
    }
    for text, why in rows.items():
        program.write_text(f"#!/bin/sh\n{text}\n")
        answer = agent.request("gpus", seconds=0.5 if "sleep" in text else 20.0)
        assert answer["gpus"] == []
        assert why in answer["gpu_error"] if why else not answer["gpu_error"]
    program.unlink()
    assert agent.request("gpus") == {"gpus": [], "gpu_error": "", "xids": [], "others": []}


def test_r_is_found_as_in_the_job(lab: Lab) -> None:
    """A fake Rscript replaces R; output of the setup is not taken for the reply."""
    assert facts(lab)["r"] is None
    absent = facts(lab, r=True, env_={"PATH": "/nonexistent"})["r"]
    assert (absent["version"], absent["error"]) == (None, "Rscript: No such file or directory")
    rscript = lab.folder / "bin" / "Rscript"
    rscript.parent.mkdir()
    rscript.write_text('#!/bin/sh\nprintf "%s%s%s" "$3" "$R_SAYS" "$3"\n')
    rscript.chmod(0o755)

    def read(answer: str) -> dict[str, Any]:
        setup = f"echo hello; export R_SAYS='{answer}' PATH={shlex.quote(str(rscript.parent))}:$PATH"
        return dict(facts(lab, r=True, setup=setup)["r"])

    assert read("4.2.2 1.28 -") == {"version": "4.2.2", "reticulate": "1.28", "jsonlite": None, "error": ""}
    assert read("4.2.2 - 1.8.4") == {"version": "4.2.2", "reticulate": None, "jsonlite": "1.8.4", "error": ""}


# There is no GPU here: a fake program replaces the driver's.
NVIDIA = """#!/bin/sh
case $1 in
*utilization*) echo "GPU-1, 92"; echo "GPU-2, [N/A]";;
*) echo "GPU-1, $PID, 10240"; echo "GPU-2, $PID, 100"; echo "GPU-1, 999999999, 5"; echo broken;;
esac
"""


def test_gpu_memory_and_load(lab: Lab) -> None:
    program, pid = lab.folder / "nvidia-smi", lab.folder / "pid"
    program.write_text(NVIDIA.replace("$PID", f"$(cat {shlex.quote(str(pid))})"))
    program.chmod(0o755)
    agent = lab.agent(env={"PATH": f"{lab.folder}:{os.environ['PATH']}"})
    pid.write_text(str(lab.start(agent, "sleep", "600")["pid"]))
    (task,) = agent.request("vitals_ask", run=lab.run, attempt="1")["tasks"]
    assert (task["gpu_memory"], task["gpu_busy"]) == ((10240 + 100) << 20, 92)


_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NETWORKS = """#!/bin/sh
# A machine with two networks, one of which has a name that begins like the other's.
exec unshare --net sh -c '
ip link set lo up
for each in one0:10.1.0.1 one00:10.2.0.1 two0:10.3.0.1; do
    name=${each%%:*}
    ip link add $name type veth peer name peer-$name && ip link set $name up
    ip addr add ${each#*:}/24 dev $name
done
ip addr add 10.3.0.9/24 dev two0 label two0:9 && ip addr add fd77::3/64 dev two0 nodad
exec "$0" "$@"' '{python}' "$@"
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("ip"), reason="needs root and ip")
@pytest.mark.parametrize(
    ("address", "login", "env", "seen"),
    [
        ("10.3.0.1", {}, {}, "two0 two0 two0"),
        ("10.1.0.1", {}, {}, "one0 =one0 one0"),
        ("10.3.0.9", {}, {}, "two0 two0 two0"),
        ("fd77::3", {}, {}, "two0 two0 two0"),
        ("127.0.1.1", {}, {}, "lo lo lo"),
        ("localhost", {}, {}, "lo lo lo"),
        ("10.9.0.1", {}, {}, "- - -"),
        ("no-such-name.invalid", {}, {}, "- - -"),
        ("10.3.0.1", {"NCCL_SOCKET_IFNAME": "^docker"}, {"GLOO_SOCKET_IFNAME": "one0"}, "one0 ^docker two0"),
    ],
)
def test_a_task_gets_the_interface_that_carries_its_address(
    lab: Lab, address: str, login: dict[str, str], env: dict[str, str], seen: str
) -> None:
    wrapper = lab.folder / "python"
    wrapper.write_text(_NETWORKS.replace("{python}", sys.executable))
    wrapper.chmod(0o755)
    agent = lab.agent(python=str(wrapper), env=login)
    print_them = f"import os; print(*(os.environ.get(name, '-') for name in {_INTERFACES}))"
    lab.start(agent, sys.executable, "-c", print_them, env=env, address=address, interfaces=_INTERFACES)
    lab.over()
    assert Path(lab.task().log).read_text().strip() == seen
