"""A host whose GPU fails while it trains; its nvidia-smi and dmesg are fakes that give recorded answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from orchestrator.rehearsal.cluster import task_ports
from tests.gpus import H100, fake_nvidia

ROOT = Path(__file__).parents[2]
SECOND = H100 | {"index": "1", "uuid": "GPU-1", "pci.bus_id": "00000000:00:0A.0", "memory.used": "40000"}
BREAKS = """#!{python} -S
import json, sys, time
with open("{bin}/cards.json") as file:
    (first, second), users = json.load(file)
with open("{bin}/cards.json", "w") as file:
    json.dump([[first, dict(second, **{{"ecc.errors.uncorrected.volatile.total": "1"}})], users], file)
with open("{bin}/kernel", "a") as log:
    now = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    print("[%12.6f] NVRM: Xid (PCI:0000:00:0a): 79, GPU has fallen off the bus." % now, file=log)
sys.exit("CUDA error: unspecified launch failure")
"""


def test_what_a_gpu_did_stands_in_the_verdict(tmp_path: Path) -> None:
    path = fake_nvidia(tmp_path / "bin", [H100, SECOND], [{"gpu_uuid": "GPU-1", "pid": str(os.getpid())}])
    with ExitStack() as held:
        (port,) = task_ports(1, held)
        (tmp_path / "hosts.toml").write_text(
            f'[[host]]\nname = "gpu-03"\nssh = "local"\naddress = "127.0.0.1"\ntask_port = {port}\n'
            f'workdir = "{tmp_path}/work"\nstate = "{tmp_path}/node"\n'
        )
        (tmp_path / "breaks").write_text(
            BREAKS.format(python=Path(sys.executable).resolve(), bin=tmp_path / "bin")
        )
        (tmp_path / "breaks").chmod(0o755)
        ended = subprocess.run(
            [sys.executable, "-m", "orchestrator", "launch", "--no-validate", "--json", "--", "./breaks"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "XDG_STATE_HOME": str(tmp_path / "s"), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 1, ended.stderr
    events = list(map(json.loads, ended.stdout.splitlines()))
    (used,) = (one for one in events if one.get("check") == "health" and one["level"] == "warn")
    assert f"pid {os.getpid()} " in used["why"]
    xid, ecc, *_ = events[-1]["why"].split("\n")
    assert xid.startswith("GPU 1 of gpu-03: Xid 79 0.")
    assert xid.endswith(" s before (GPU has fallen off the bus.)")
    assert ecc == "GPU 1 of gpu-03: uncorrected ECC errors: 1"
    assert "--exclude gpu-03" in events[-1]["hint"]
    assert events[-1]["cause_host"] == "gpu-03"
