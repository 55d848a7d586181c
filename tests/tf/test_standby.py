"""A standby that has imported TensorFlow has not touched CUDA, and becomes the training task."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base import procs
from tests.node.agent_client import AgentClient
from tests.node.harness import until
from tests.training import training_python

DRIVER = """
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int note(const char *name) {
    int fd = open(getenv("CUDA_CALLS"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(fd, name, strlen(name)) < 0) return 999;
    return close(fd) + 100; /* CUDA_ERROR_NO_DEVICE */
}
int cuInit(unsigned flags) { return note("cuInit "); }
int cuDriverGetVersion(int *version) { *version = 12080; note("cuDriverGetVersion "); return 0; }
int cuDeviceGetCount(int *count) { *count = 0; return note("cuDeviceGetCount "); }
int cuDevicePrimaryCtxRetain(void *context, int device) { return note("cuDevicePrimaryCtxRetain "); }
int cuCtxCreate_v2(void *context, unsigned flags, int device) { return note("cuCtxCreate "); }
"""
PROGRAM = """
import tensorflow as tf
import ctypes, os
print(os.getpid(), float(tf.reduce_sum(tf.keras.layers.Dense(1)(tf.zeros((2, 2))))))
ctypes.CDLL("libcuda.so.1").cuInit(0)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to make a driver of")
def test_a_waiting_standby_has_not_initialized_cuda(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    driver, calls, state = tmp_path / "lib" / "libcuda.so.1", tmp_path / "calls", tmp_path / "state"
    driver.parent.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, tmp_path / "driver.c"], check=True)
    (tmp_path / "train.py").write_text(PROGRAM)
    python = training_python()
    spec: dict[str, Any] = {
        "argv": [python, "train.py"],
        "env": {"LD_LIBRARY_PATH": str(driver.parent), "CUDA_CALLS": str(calls), "TF_CPP_MIN_LOG_LEVEL": "3"},
        "cwd": str(tmp_path),
        "python": python,
        "imports": ["tensorflow", "tensorflow/keras/layers"],
    }
    guest = {
        **spec,
        "argv": [python, "-m", "worker_entry", "--validate", "--dataset", "digits"],
        "env": {**spec["env"], "PYTHONDONTWRITEBYTECODE": "1"},
        "cwd": str(Path(__file__).resolve().parents[2]),
        "guest": True,
    }
    with AgentClient(state) as agent:
        assert agent.request("standby", specs=[spec], spare=False)["made"] == 1
        until(lambda: any(state.glob("standby/*/ready")), 150.0, "it has imported")
        (leader,) = state.glob("standby/*/leader")
        pid = int(leader.read_text())
        reply = agent.request("start", run="cuda", attempt="validate", task="worker/0", spec=guest, plan=None)
        assert reply["warm"]
        assert reply["pid"] != pid
        folder = state / "runs" / "cuda" / "attempts" / "validate" / "worker-0"
        until(lambda: '"exited"' in (folder / "state.json").read_text(), 150.0, "a fork has trained")
        assert "weights digest" in (folder / "output.log").read_text()
        assert not calls.exists()
        files = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [path for path in files if "nvidia" in path]
        sockets = {path[8:-1] for path in files if path.startswith("socket:")}
        table = procs.text(f"/proc/{pid}/net/tcp").splitlines()[1:]
        assert not [line for line in table if line.split()[9] in sockets], "it holds a port"
        reply = agent.request("start", run="cuda", attempt="1", task="worker/0", spec=spec, plan=None)
        assert (reply["pid"], reply["warm"]) == (pid, True)
        until(calls.exists, 60.0, "the program itself has called the driver")
    assert calls.read_text() == "cuInit "
    log = state / "runs" / "cuda" / "attempts" / "1" / "worker-0" / "output.log"
    until(lambda: log.read_text().endswith(f"{pid} 0.0\n"), 60.0, "its output is kept")
