"""A host whose GPU fails during training; fake nvidia-smi and dmesg replay recorded output."""

import json
import os
import sys
from pathlib import Path

from tests import command
from tests.gpus import H100, fake_nvidia
from tests.local.here import inventory

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


def test_the_verdict_includes_gpu_failures(tmp_path: Path) -> None:
    path = fake_nvidia(tmp_path / "bin", [H100, SECOND], [{"gpu_uuid": "GPU-1", "pid": str(os.getpid())}])
    (tmp_path / "breaks").write_text(
        BREAKS.format(python=Path(sys.executable).resolve(), bin=tmp_path / "bin")
    )
    (tmp_path / "breaks").chmod(0o755)
    with inventory(tmp_path, "gpu-03") as hosts:
        (tmp_path / "hosts.toml").write_text(hosts)
        environ = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(tmp_path / "s")}
        ended = command.run(["launch", "--no-validate", "--json", "--", "./breaks"], tmp_path, environ)
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
