"""Health of the GPUs that tasks may use, before a run and after it failed. Pure."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from orchestrator import wire
from orchestrator.checks.report import Evidence, HostReport, Judgment, Judgments, unlike
from orchestrator.events import Level
from orchestrator.model import Role
from orchestrator.ranges import fold, grouped
from orchestrator.text import duration, size

_TRAIN = (Role.CHIEF, Role.WORKER)
_MUCH = 0.1  # of a GPU's memory: tasks need nearly all of it
_DAY = 86_400  # seconds: older errors are not reported
_CLEANUP = 45  # an Xid that only follows another one
_BROKEN = (48, 64, 74, 79, 95, 119, 120)  # Xids that no program causes, according to NVIDIA's catalog
_RESET = "`nvidia-smi -r` there as root while nothing uses it, or restart the machine; or exclude that GPU"
_AGAIN = f"{_RESET}. If it happens again, have the card, its slot, and its power supply checked"
_COOL = "check its fans, airflow, and power supply: all tasks wait for the slowest"
_ECC = "ecc.errors.uncorrected.volatile.total"  # since its driver was loaded
_SLOW, _HEAT, _BRAKE = "clocks_throttle_reasons.active", "0x.*([4-7C-F]).", "0x.*([89A-F])."  # 0x40, 0x80
# A field, the values that are a problem, its level before and after training, its text, and a fix.
_ROWS = (
    ("temperature.gpu", r"\[(GPU is lost|GPU requires reset)\]", Level.FAIL, "{}", _AGAIN),
    ("gpu_recovery_action", "(Reset|Reboot)", Level.FAIL, "its driver recommends: {}", _RESET),
    (_ECC, "([1-9][0-9]*)", Level.WARN, "uncorrected ECC errors: {}", _AGAIN),
    ("remapped_rows.failure", "(Yes)", Level.WARN, "a row of its memory could not be remapped", _AGAIN),
    ("retired_pages.pending", "(Yes)", Level.WARN, "failed pages of its memory are still in use", _RESET),
    (_SLOW, _HEAT, Level.WARN, "slowed down by heat", _COOL),
    (_SLOW, _BRAKE, Level.WARN, "slowed down by its power brake", _COOL),
)
_HOT = ("temperature.gpu", "(8[5-9]|9.|1..)", Level.WARN, "{} °C before a task runs", _COOL)


def _number(gpu: wire.Gpu, field: str) -> int:
    """Return a number; 0 for `[N/A]` and everything else that is not one."""
    text = gpu.fields.get(field, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def troubles(gpu: wire.Gpu, *, idle: bool = False) -> Iterator[Judgment]:
    """Judge a GPU; `idle`: no task of ours runs on it."""
    for field, pattern, level, text, hint in (*_ROWS, *((_HOT,) if idle else ())):
        if match := re.fullmatch(pattern, gpu.fields.get(field, "")):
            yield Judgment(level, text.format(match[1]), hint=hint)
    at_work = gpu.fields.get("pstate") == "P0" and _number(gpu, "utilization.gpu")  # an idle one lowers it
    for what, field in (("x", "width"), *((("generation ", "gen"),) if at_work else ())):
        now, most = (_number(gpu, f"pcie.link.{field}.{which}") for which in ("current", "max"))
        if 0 < now < most:
            text = f"PCIe {what}{now} where {what}{most} is possible: data transfers are slower"
            yield Judgment(Level.WARN, text, hint="have the card and its riser reseated")
    used, total = (_number(gpu, f"memory.{which}") << 20 for which in ("used", "total"))
    if idle and used > _MUCH * total > 0:
        why = gpu.fields.get("users") or "its user is not visible there: it may be in another container"
        hint = "wait for it, end it, or exclude that GPU: `devices` in hosts.toml"
        yield Judgment(Level.WARN, f"{size(used)} of {size(total)} in use", why, hint)


def usable(report: HostReport) -> list[wire.Gpu]:
    """Return the GPUs that tasks may get."""
    names, gpus = report.host.devices, report.facts.gpus
    if names is None:
        return [*gpus] if report.host.role in _TRAIN else []
    return [gpu for gpu in gpus if str(gpu.index) in names or gpu.fields.get("uuid", "").startswith(names)]


def health(evidence: Evidence) -> Judgments:
    """Judge the GPUs of each host; missing ones are a failure if other hosts have GPUs."""
    having = {report.name for report in evidence.reports if usable(report)}
    for report in evidence.reports:
        for finding in _healthy(report, needed=bool(having - {report.name})):
            yield report.name, finding


def _healthy(report: HostReport, *, needed: bool) -> Iterator[Judgment]:
    facts, gpus, devices = report.facts, usable(report), report.host.devices
    likely = devices is None and report.host.role in _TRAIN and facts.gpu_error != "No devices were found"
    if facts.gpu_error and (devices or likely):
        hint = "run `nvidia-smi` there; a driver that was updated, or hangs, needs a restart of the machine"
        hint += "" if devices or gpus else "; or set `devices = []` for it, to train without"
        level = Level.FAIL if len(gpus) < (len(devices) if devices else int(needed)) else Level.WARN
        yield Judgment(level, "nvidia-smi does not show all GPUs", facts.gpu_error, hint)
    if gpus:
        yield Judgment(Level.OK, f"{max(_number(gpu, 'temperature.gpu') for gpu in gpus)} °C")
    pairs = ((trouble, str(gpu.index)) for gpu in gpus for trouble in troubles(gpu, idle=True))
    for trouble, numbers in grouped(pairs).items():
        yield replace(trouble, text=f"GPU {fold(numbers)}: {trouble.text}")
    now = report.hello.time_ns / 1e9
    spared = {f"GPU {gpu.index}" for gpu in facts.gpus if gpu not in gpus}
    for at, name, code, text in _xids(facts, facts, now - _DAY) if devices != () else ():
        if code in _BROKEN and name not in spared:
            when = f"{name}: Xid {code} {duration(now - at)} ago"
            yield Judgment(Level.WARN, when, f"the kernel's log: {text}", _AGAIN)


def _kind(report: HostReport) -> str:
    models = {f"{gpu.name}, driver {gpu.fields.get('driver_version')}" for gpu in usable(report)}
    return "; ".join(sorted(models))


def alike(evidence: Evidence) -> Judgments:
    kinds = ((_kind(report), report.name) for report in evidence.reports)
    return unlike(kinds, "all tasks run at the slowest one's speed")


def changes(
    host: str, before: wire.GpuLook, now: wire.GpuLook, since: float, failed: float
) -> Iterator[tuple[float, str, bool]]:
    """Return new problems of a host's GPUs, with kernel messages: when, what, and True for a broken GPU.

    `since` and `failed` are when the attempt began and failed, by that host's clock.
    """
    if now.gpu_error != before.gpu_error:
        yield failed, f"{host}: nvidia-smi: {now.gpu_error}", True
    old, new = ({_bus(gpu): gpu for gpu in state.gpus} for state in (before, now))
    for bus in old.keys() - new.keys() if new else ():
        yield failed, f"GPU {old[bus].index} of {host}: nvidia-smi no longer shows it", True
    for bus in old.keys() & new.keys():
        for trouble in {*troubles(new[bus])} - {*troubles(old[bus])}:
            yield failed, f"GPU {old[bus].index} of {host}: {trouble.text}", trouble.level is Level.FAIL
    for at, name, code, text in _xids(now, before, since):
        when = f"{duration(abs(failed - at))} {'before' if at <= failed else 'after'}"
        yield at, f"{name} of {host}: Xid {code} {when} ({text})", code in _BROKEN


def _xids(current: wire.GpuLook, names: wire.GpuLook, since: float) -> Iterator[tuple[float, str, int, str]]:
    """Return the first Xid of each GPU and code since then: when, the GPU's name, code, message."""
    labels = {_bus(gpu): f"GPU {gpu.index}" for gpu in names.gpus}
    recent = [xid for xid in current.xids if xid[0] / 1e9 >= since and xid[2] != _CLEANUP]
    for at, bus, code, text in {xid[1:3]: xid for xid in reversed(recent)}.values():
        yield at / 1e9, labels.get(bus, f"GPU {bus}"), code, text


def _bus(gpu: wire.Gpu) -> str:
    """Return a PCI address in the kernel log's form: `0000:0c:00` for `00000000:0C:00.0`."""
    return gpu.fields.get("pci.bus_id", "").lower().rpartition(".")[0][-10:]
