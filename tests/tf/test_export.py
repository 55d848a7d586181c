"""The same training by a launch, as pods, and under mpirun ends with the same weights."""

import base64
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.export.common import RANK_FILE
from orchestrator.orchestrate_rank import expand
from tests.ports import free_ports
from tests.processes import called
from tests.ssh.runs.desk import Desk
from tests.tf.gang import PATIENCE
from tests.training import short, training_python

KUBERNETES = '\n[export.kubernetes]\nimage = "train"\n'


def digests(text: str) -> list[str]:
    found: list[str] = re.findall(r"worker/\d: weights (\w{16}), accuracy 0\.\d+", text)
    return found


def launched(desk: Desk) -> str:
    """Launch, and return the weights."""
    program = (desk.project / desk.example("fit.py")).read_text()
    viewer = desk.launch("--", desk.script("fit.py", short(program))).ended(limit=PATIENCE)
    found = digests(viewer.stdout)
    assert len(found) == 4
    assert len(set(found)) == 1
    return found[0]


def exported(desk: Desk) -> list[dict[str, Any]]:
    with desk.hosts.open("a") as file:
        file.write(KUBERNETES)
    viewer = desk.start("export", "kubernetes", "--hosts", str(desk.hosts), "--", "fit.py").ended()
    return list(yaml.safe_load_all(viewer.stdout))


class Kubelet:
    """Starts a Job's pods like a kubelet, but all on this machine, so that each name becomes a port."""

    def __init__(self, folder: Path, config_map: dict[str, Any], job: dict[str, Any]) -> None:
        self.folder = folder
        self.config_map = config_map
        self.pod = job["spec"]["template"]["spec"]
        self.count: int = job["spec"]["completions"]
        names = (f"{job['metadata']['name']}-{index}" for index in range(self.count))
        self.names = [f"{name}.{self.pod['subdomain']}" for name in names]
        self.ports = free_ports(self.count)

    def volume(self, mount: dict[str, Any], pod: Path) -> Path:
        """Create the volume of a mount; all files of a ConfigMap are behind one link."""
        volume = next(one for one in self.pod["volumes"] if one["name"] == mount["name"])
        folder = pod / str(volume["name"])
        (folder / "..1").mkdir(parents=True)
        for item in volume.get("configMap", {}).get("items", ()):
            path = folder / "..1" / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            text, binary = (self.config_map.get(kind, {}) for kind in ("data", "binaryData"))
            key = item["key"]
            path.write_bytes(text[key].encode() if key in text else base64.b64decode(binary[key]))
            first = folder / item["path"].split("/")[0]
            if not first.exists():
                first.symlink_to(Path("..data") / first.name)
        (folder / "..data").symlink_to("..1")
        return folder

    def run(self, index: int) -> subprocess.CompletedProcess[str]:
        (container,) = self.pod["containers"]
        pod = self.folder / f"pod-{index}"
        command = [*container["command"], *container["args"]]
        for mount in container["volumeMounts"]:
            folder = str(self.volume(mount, pod))
            command = [re.sub(rf"(?<![\w/]){mount['mountPath']}\b", folder, word) for word in command]
        at = command.index("--hosts") + 1
        assert expand(command[at]) == self.names
        command[at] = ",".join(f"localhost:{port}" for port in self.ports)
        command = [training_python() if word == "python3" else word.replace("$$", "$") for word in command]
        given = {one["name"]: one.get("value", str(index)) for one in container["env"]}
        env = {"PATH": os.environ["PATH"], "HOME": str(pod), "TF_CPP_MIN_LOG_LEVEL": "2", **given}
        return called(command, env=env, cwd=pod, timeout=PATIENCE)


@pytest.mark.soak
def test_pods_produce_the_same_weights_as_a_launch(four: Desk, tmp_path: Path) -> None:
    expected = launched(four)
    config_map, service, job = exported(four)
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    kubelet = Kubelet(tmp_path / "kubelet", config_map, job)
    with ThreadPoolExecutor(kubelet.count) as pool:
        pods = list(pool.map(kubelet.run, range(kubelet.count)))
    assert [pod.returncode for pod in pods] == [0] * 4, [pod.stderr[-2000:] for pod in pods]
    assert digests("".join(pod.stdout for pod in pods)) == [expected] * 4

    if not shutil.which("mpirun"):
        assert not os.environ.get("CI"), "mpirun is part of CI: scripts/setup tests"
        pytest.skip("no mpirun (openmpi-bin): only the pods were compared")
    env = {**four.environment(), "TF_USE_LEGACY_KERAS": "1", "grpc_proxy": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    hosts = ",".join(f"localhost:{port}" for port in free_ports(4))
    rank = [training_python(), str(RANK_FILE), "--hosts", hosts, "--"]
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "4"]
    command = [*mpirun, *rank, training_python(), "fit.py"]
    ranks = called(command, env=env, cwd=four.project, timeout=PATIENCE)
    assert ranks.returncode == 0, ranks.stderr[-3000:]
    assert digests(ranks.stdout) == [expected] * 4
