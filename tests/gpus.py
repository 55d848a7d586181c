"""Output of nvidia-smi recorded on real GPUs, and a fake nvidia-smi that replays it without a GPU.

H100 and RTX_2080, both idle, are of github.com/utkuozdemir/nvidia_gpu_exporter, its files
internal/captures/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt, samples/output_ubuntu_20.04_v465.27.txt.
XIDS are lines of github.com/tinygrad/tinygrad/issues/6947 and madMAx43v3r/chia-gigahorse/issues/301, and one
of NVIDIA's documentation of memory errors in dmesg's form.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

H100 = {
    "index": "0",
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "pci.bus_id": "00000000:00:09.0",
    "driver_version": "590.48.01",
    "memory.total": "81559",
    "memory.used": "0",
    "temperature.gpu": "41",
    "pstate": "P0",
    "utilization.gpu": "0",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "clocks_throttle_reasons.active": "0x0000000000000001",
    "ecc.errors.uncorrected.volatile.total": "0",
    "retired_pages.pending": "[N/A]",
    "remapped_rows.failure": "No",
    "gpu_recovery_action": "None",
    "name": "NVIDIA H100 80GB HBM3",
}
# Its driver knows neither remapped rows nor a recovery action.
RTX_2080 = {key: value for key, value in H100.items() if not key.startswith(("remapped", "gpu_rec"))} | {
    "uuid": "GPU-1937b558-347d-0f30-105b-893b98985668",
    "pci.bus_id": "00000000:0C:00.0",
    "driver_version": "465.27",
    "memory.total": "7979",
    "memory.used": "344",
    "temperature.gpu": "32",
    "pstate": "P8",
    "pcie.link.gen.current": "1",
    "pcie.link.gen.max": "3",
    "ecc.errors.uncorrected.volatile.total": "[N/A]",
    "name": "NVIDIA GeForce RTX 2080 SUPER",
}
XIDS = """\
[22859.081859] NVRM: Xid (PCI:0000:01:00): 31, pid=14292, name=python, Ch 00000030, intr 00000000. MMU Fault
[22859.081860] NVRM: GPU Board Serial Number: 1710424007242
[14370.688139] NVRM: Xid (PCI:0000:0a:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008
[14371.000000] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No
"""
_FAKE = """#!{python} -S
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "asked"), "a") as asked:
    print(sys.argv[1], file=asked)
option, _, fields = sys.argv[1].partition("=")
with open(os.path.join(here, "cards.json")) as file:
    cards, users = json.load(file)
for field in fields.split(",") if option == "--query-gpu" else ():
    if cards and field not in cards[0]:
        print('Field "%s" is not a valid field to query.\\n' % field)
        sys.exit(2)
rows = cards if option == "--query-gpu" else users
for row in rows:
    print(", ".join(row[field] for field in fields.split(",")))
"""


def fake_nvidia(
    folder: Path, cards: Sequence[Mapping[str, str]], users: Sequence[Mapping[str, str]] = ()
) -> str:
    """Create a fake nvidia-smi and dmesg that print files next to them; return a PATH with both."""
    folder.mkdir(exist_ok=True)
    (folder / "cards.json").write_text(json.dumps([cards, users]))
    (folder / "kernel").write_text(XIDS)
    programs = {
        "nvidia-smi": _FAKE.format(python=Path(sys.executable).resolve()),
        "dmesg": '#!/bin/sh\ncat "${0%/*}/kernel"\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
