"""The health of GPUs: recorded answers of nvidia-smi, and such with one field changed."""

import time
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.checks import HostReport, gpus
from orchestrator.events import Level
from tests.golden import matches_golden
from tests.gpus import H100, RTX_2080
from tests.unit.test_checks import examined, in_words, report

NOW = 1_700_000_000 * 10**9
OFF = "pid=1122, GPU has fallen off the bus."


def seen(*cards: dict[str, str], **more: Any) -> dict[str, Any]:
    rows = [{"index": int(card["index"]), "name": card["name"], "fields": card} for card in cards]
    return {"gpus": rows, **more}


def at(name: str, *cards: dict[str, str], devices: tuple[str, ...] | None = None, **more: Any) -> HostReport:
    changes = {f"facts__{key}": value for key, value in seen(*cards, **more).items()}
    return report(name, hello__time_ns=NOW, host__devices=devices, **changes)


SECOND = H100 | {"index": "1", "uuid": "GPU-1", "pci.bus_id": "00000000:00:0A.0"}
KNOWN = ("index", "driver_version", "name")
_ECC = "ecc.errors.uncorrected.volatile.total"
LOST = dict.fromkeys(("temperature.gpu", "utilization.gpu", "pstate"), "[GPU requires reset]")
ALONE: dict[str, dict[str, Any]] = {
    "as recorded": {},
    "an older card, idle": {"all": (RTX_2080, RTX_2080 | {"index": "1"})},
    "a word for every value": {"card": {key: "[N/A]" for key in H100 if key not in KNOWN}},
    "another word": {"card": {key: "[Unknown Error]" for key in H100 if key not in KNOWN}},
    "lost": {"card": LOST | {"memory.used": "0"}},
    "recovery": {"card": {"gpu_recovery_action": "Reboot"}},
    "ECC": {"card": {_ECC: "3"}},
    "rows": {"card": {"remapped_rows.failure": "Yes", "remapped_rows.pending": "Yes"}},
    "pages": {"card": {"retired_pages.pending": "Yes"}},
    "heat": {"card": {"clocks_throttle_reasons.active": "0x0000000000000048", "temperature.gpu": "91"}},
    "power brake": {"card": {"clocks_throttle_reasons.active": "0x0000000000000088"}},
    "software's cap": {"card": {"clocks_throttle_reasons.active": "0x0000000000000004"}},
    "width": {"card": {"pcie.link.width.current": "4"}},
    "generation, idle": {"card": {"pcie.link.gen.current": "1"}},
    "generation, at work": {"card": {"pcie.link.gen.current": "1", "utilization.gpu": "97"}},
    "in use": {"card": {"memory.used": "40000", "users": "pid 4242 python3 (user bob)"}},
    "in use, nobody knows by whom": {"card": {"memory.used": "40000", "users": ""}},
    "both": {"all": (H100 | {_ECC: "1"}, SECOND | {_ECC: "1"})},
    "mismatch": {"all": (), "gpu_error": "Failed to initialize NVML: Driver/library version mismatch"},
    "hangs, and is needed": {"all": (), "devices": ("0",), "gpu_error": "no answer within 40 s"},
    "one is gone": {"gpu_error": "Unable to determine the device handle for GPU 0000:BA:00.0: Unknown Error"},
    "none, and none needed": {"all": (), "gpu_error": "No devices were found"},
    "Xid": {"xids": [[NOW - 9 * 10**9, "0000:00:0a", 79, OFF], [NOW, "0000:00:0a", 31, "of a program"]]},
    "Xid of long ago": {"xids": [[NOW - 10**15, "0000:00:0a", 79, OFF]]},
    "Xid of one that is not used": {"devices": ("0",), "xids": [[NOW, "0000:00:0a", 79, OFF]]},
    "bad, and not used": {"devices": ("0",), "card": {_ECC: "3"}},
    "none used": {"devices": (), "card": {_ECC: "3"}, "gpu_error": "?"},
    "another model": {"all": (H100 | {"name": "NVIDIA A100-SXM4-80GB"},) * 2},
    "another driver": {"card": {"driver_version": "535.183.01"}},
}


def test_what_nvidia_smi_says_is_judged() -> None:
    text = ""
    for name, row in ALONE.items():
        more = {key: value for key, value in row.items() if key not in ("card", "all")}
        cards = row.get("all", (H100, SECOND | row.get("card", {})))
        results = examined(
            at("gpu-01", H100, SECOND), at("gpu-02", *cards, **more), at("gpu-03", H100, SECOND)
        )
        mine = [one for one in results if one.host == "gpu-02" and one.check in ("health", "model", "gpu")]
        assert {one.host for one in results if one.level is not Level.OK} <= {"gpu-02"}, name
        notes = "; ".join(one.found for one in mine if one.level is Level.OK and one.check == "health")
        text += f"{name}: {notes}\n{in_words(mine)}\n"
    matches_golden("checks/gpus.txt", text)


def look(*cards: dict[str, str], **more: Any) -> wire.GpuLook:
    return wire.read(seen(*cards, **more), wire.GpuLook, "gpus")


BOTH = look(H100, SECOND)
CHANGES: list[tuple[wire.GpuLook, wire.GpuLook]] = [
    (BOTH, BOTH),
    (BOTH, look(H100, SECOND, xids=[[NOW - 4 * 10**8, "0000:00:0a", 79, OFF], [NOW, "0000:00:0a", 45, "-"]])),
    (BOTH, look(H100, xids=[[NOW + 10**8, "0000:00:0a", 79, OFF], [NOW + 10**9, "0000:00:0a", 79, OFF]])),
    (BOTH, look(H100, SECOND, xids=[[NOW - 10**12, "0000:00:0a", 79, OFF]])),  # before the attempt
    (look(H100, SECOND | {_ECC: "1"}), look(H100, SECOND | {_ECC: "1", "temperature.gpu": "88"})),
    (look(H100, SECOND | {_ECC: "1"}), look(H100, SECOND | {_ECC: "2", "memory.used": "70000"})),
    (BOTH, look(H100, SECOND | LOST)),
    (BOTH, look(gpu_error="no answer within 12 s")),
    (look(), look(H100, xids=[[NOW, "0000:01:00", 31, "MMU Fault"]])),
]


def test_what_has_changed_is_told_with_when() -> None:
    text = ""
    for before, now in CHANGES:
        found = sorted(gpus.changes("gpu-03", before, now, NOW / 1e9 - 60, NOW / 1e9))
        text += "".join(f"{'broken: ' * broken}{words}\n" for _, words, broken in found) + "\n"
    matches_golden("checks/gpus_changed.txt", text)


@pytest.mark.parametrize("words", ["\x1b[2J" * 9000, "9" * 9000, "0x" + "F" * 900, "{0.__class__}", ""])
def test_hostile_values_are_words(words: str) -> None:
    card = dict.fromkeys(H100, words) | {"index": "0", words: words}
    began = time.monotonic()
    results = examined(
        at("gpu-01", H100), at("gpu-02", card, gpu_error=words, xids=[[NOW, words, 79, words]])
    )
    assert time.monotonic() - began < 1
    for one in results:
        assert "\x1b" not in one.found + one.why + one.hint
        assert words == "" or words not in one.hint
