"""Checks of a single machine, as rows. Pure."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from orchestrator import wire
from orchestrator.checks.gpus import health
from orchestrator.checks.report import (
    PACKAGES,
    Check,
    HostReport,
    Judgment,
    Needs,
    each,
    minor,
    ok,
    release,
    set_key,
)
from orchestrator.diagnosis.verdict import SIGNAL_HINTS
from orchestrator.events import HostDescribed, Level
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import FrameworkName
from orchestrator.text import count, duration, size

OLDEST_PYTHON = (3, 8)  # for our agent
LITTLE_DISK, NO_DISK = 5e9, 200e6  # bytes: below the first a warning, below the second a failure
LEAST_SHM = 256 << 20  # bytes, for NCCL between the GPUs of one machine
SKEW = 1.0  # seconds
_KERAS_3 = (2, 16)  # the first TensorFlow for which tf_keras makes `fit` work on several tasks
_NUMPY_2 = (1, 38)  # the first reticulate that supports numpy 2
_DEBIAN = "`apt install r-base-core r-cran-reticulate r-cran-jsonlite` there as root"
# The distribution that provides a module, if its name differs; for tensorflow there are several.
_BRINGS = {
    "google.protobuf": "protobuf",
    "google": "protobuf",
    "absl": "absl-py",
    "tensorflow_datasets": "tensorflow-datasets",
}
# A shell reports a missing command in the login's language.
_NO_CONDA = re.compile(r"(?:conda|mamba)\s?: (?!error)|(?:conda|mamba) (?:init|activate)|shell hook")
_CONDA = (
    "`conda activate` is a function of interactive shells: write "
    '`setup = ". ~/miniconda3/etc/profile.d/conda.sh; conda activate NAME"`, or leave `setup` out and set '
    '`python = "~/miniconda3/envs/NAME/bin/python"` (`conda info --base` shows the folder)'
)
_MISSING = "ModuleNotFoundError: No module named "
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _login(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    yield ok(report.hello.user)


def _agent(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    version = report.hello.python
    if release(version) >= OLDEST_PYTHON:
        yield ok(version)
    else:
        why = "orchestrate's agent needs Python 3.8 or newer; the training may use another one"
        yield Judgment(Level.FAIL, f"Python {version}", why)


def _setup(report: HostReport, needs: Needs) -> Iterator[Judgment]:
    """Judge `setup` if the framework is missing: no other check reports that then."""
    setup = report.facts.setup
    if setup is not None and _setup_failed(report, needs):
        status = "was killed" if setup.status is None else f"ended with {setup.status}"
        missing = f"{FRAMEWORKS[needs.framework].package} is not installed"
        missing = missing if report.facts.python.ok else f"{report.host.python} does not run"
        level = Level.FAIL if needs.needed else Level.WARN
        hint = _CONDA if _NO_CONDA.search(setup.words) else ""
        yield Judgment(level, f"the `setup` of [job] {status}, and {missing}", setup.words, hint)


def _setup_failed(report: HostReport, needs: Needs) -> bool:
    """Return True if the `setup` of [job] failed or printed errors, and the framework is missing."""
    setup, package = report.facts.setup, FRAMEWORKS[needs.framework].package
    missing = not report.facts.python.ok or (package and report.version(package) is None)
    return bool(setup and missing and (setup.status != 0 or setup.words))


def _python(report: HostReport, needs: Needs) -> Iterator[Judgment]:
    python = report.facts.python
    if python.ok:
        yield ok(python.version or "?")
    elif not _setup_failed(report, needs):
        hint = set_key("python", "the Python for the tasks")
        hint = "`orchestrate setup`" if report.is_made(needs) else hint
        if "No module named 'encodings'" in python.error:
            hint += '; if the login sets PYTHONHOME: `PYTHONHOME = ""` under [job.env]'
        if python.error == "bash: No such file or directory":
            hint = "install bash there: it runs the `setup` of [job]"
        yield Judgment(Level.FAIL, f"{report.host.python} does not run", python.error, hint)


def _framework(name: FrameworkName) -> Callable[[HostReport, Needs], Iterator[Judgment]]:
    """Return the judgment of a framework, for jobs that use it."""
    package, installs = FRAMEWORKS[name].package, FRAMEWORKS[name].installs

    def judge(report: HostReport, needs: Needs) -> Iterator[Judgment]:
        version = report.version(package)
        if needs.framework is not name:
            return
        if version is not None:
            yield ok(version)
        elif report.facts.python.ok and not _setup_failed(report, needs):
            level = Level.FAIL if needs.needed else Level.WARN
            own = "set `python`, `setup` or `framework` to the right one"
            hint = "; or ".join(filter(None, (report.pip(package, installs=installs), own)))
            if report.is_made(needs):
                hint = f"add {package} to `packages` under [env] or to the script's header, then launch again"
            yield Judgment(level, "not installed", f"{report.facts.python.path} does not have it", hint)

    return judge


def _tf_keras(report: HostReport, needs: Needs) -> Iterator[Judgment]:
    """Compare the minor versions of tf_keras, which `fit` needs on several tasks, and TensorFlow."""
    tensorflow, version = report.version("tensorflow"), report.version("tf-keras")
    if tensorflow is None or not needs.legacy_keras or release(tensorflow) < _KERAS_3:
        return
    if version is not None and minor(version) == minor(tensorflow):
        yield ok(version)
        return
    # --no-deps, because it would install tensorflow next to tensorflow-cpu.
    pip = report.pip("--no-deps", f"tf_keras=={'.'.join(minor(tensorflow))}.*")
    hint = "; or ".join(filter(None, (pip, "set `legacy_keras = false` under [job]")))
    if report.is_made(needs):
        hint = "add tf-keras to `packages` under [env], then run `orchestrate setup`"
    why = "TF_USE_LEGACY_KERAS=1 is set, because tf.keras in the program is Keras 2; the versions must match"
    level = Level.FAIL if needs.needed else Level.WARN
    yield Judgment(
        level, f"{version} with tensorflow {tensorflow}" if version else "not installed", why, hint
    )


def _import(report: HostReport, needs: Needs) -> Iterator[Judgment]:
    imported = report.imported
    if imported is None:
        return
    broken = next((module for module in imported.modules if module.error), None)
    if broken is not None:
        hint = _import_fix(report, needs, broken.name, broken.error)
        yield Judgment(Level.FAIL, f"{broken.name} cannot be imported", broken.error[:400], hint)
    elif imported.ended:
        what = f"while importing {imported.importing}" if imported.importing else "at its start"
        python = shlex.quote(report.facts.python.path or "python3")
        by_hand = f"run `{python} -c 'import {FRAMEWORKS[needs.framework].package}'` there"
        hint = SIGNAL_HINTS.get(imported.signal or 0, by_hand).format(host=report.name)
        yield Judgment(Level.FAIL, f"Python ended {what}", imported.ended, hint)
    else:
        yield ok()


def _import_fix(report: HostReport, needs: Needs, module: str, error: str) -> str:
    """Return the fix for a module that cannot be imported."""
    if missing := error.startswith(_MISSING):
        module = error.removeprefix(_MISSING).lstrip("'").partition("'")[0].partition(".")[0]
    name = report.distribution or "tensorflow" if module == "tensorflow" else _BRINGS.get(module, module)
    version = report.facts.packages.get(name.replace("_", "-"))
    if not report.is_made(needs):
        # An installed package is reinstalled, in the same version and distribution.
        options = ("--force-reinstall", "--no-deps", f"{name}=={version}") if version else (name,)
        return report.pip(*options) if _NAME.fullmatch(module) else ""
    if missing and not version:
        return f"add {name} to `packages` under [env] (docs/setup.md#packages), then run `orchestrate setup`"
    # setup does not recreate an environment that exists.
    return f"remove {report.host.python.removesuffix('/bin/python')} there, then run `orchestrate setup`"


def _r(report: HostReport, needs: Needs) -> Iterator[Judgment]:
    """Check R and reticulate, if the job is an R script."""
    r, numpy = report.facts.r, report.version("numpy")
    if r is None or not needs.r:
        return
    if r.version is None:
        yield Judgment(Level.FAIL, "Rscript does not run", r.error)
    elif r.reticulate is None:
        hint = f"{_DEBIAN}; or `Rscript -e 'install.packages(\"reticulate\")'`"
        why = "R reaches TensorFlow through reticulate"
        yield Judgment(Level.FAIL, f"{r.version} without reticulate", why, hint)
    elif numpy is not None and release(numpy) >= (2, 0) and release(r.reticulate) < _NUMPY_2:
        text = f"reticulate {r.reticulate} with numpy {numpy}"
        why = f"before 1.38 it cannot convert arrays from numpy 2, which {report.facts.python.path} has"
        hint = "create an environment with 'numpy<2' for R hosts (docs/r.md), and set `python` to it"
        yield Judgment(Level.WARN, text, why, hint)
    elif r.jsonlite is None:
        text = f"{r.version}, reticulate {r.reticulate}, without jsonlite"
        yield Judgment(Level.WARN, text, "most R scripts read TF_CONFIG with jsonlite")
    else:
        yield ok(f"{r.version}, reticulate {r.reticulate}, jsonlite {r.jsonlite}")


def _shm(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    free = report.facts.machine.shm
    if len(report.facts.gpus) > 1 and free is not None and free < LEAST_SHM:
        why = "NCCL exchanges gradients between the GPUs of a machine through it"
        yield Judgment(Level.FAIL, f"{size(free)} in /dev/shm", why)


def _state(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    trouble = report.hello.state_error
    if trouble:
        yield Judgment(Level.FAIL, "cannot be used", f"the host {trouble.summary}\n{trouble.details}")
    else:
        yield ok()


def _workdir(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    workdir = report.facts.disk.workdir
    if workdir.writable:
        yield ok()
    else:
        yield Judgment(Level.FAIL, f"{workdir.path} cannot be written", workdir.error)


def _disk(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    """Check the disk of `workdir` or of `state`, whichever has less space."""
    disks = report.facts.disk
    if not disks.workdir.writable:
        return  # already reported, and nothing will be written to the parent folder
    free, key, path, holds = disks.workdir.free, "workdir", disks.workdir.path, "code and checkpoints"
    if disks.state is not None and disks.state <= free:
        free, key, path, holds = disks.state, "state", str(report.hello.state), "the tasks' logs"
    if free >= LITTLE_DISK:
        yield ok(f"{size(free)} free")
        return
    level = Level.FAIL if free < NO_DISK else Level.WARN
    hint = set_key(key, "another disk, or make room there (`orchestrate clean`)")
    yield Judgment(level, f"{size(free)} free", f"{path} needs room for {holds}", hint)


def _clock(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    ahead = report.clock
    if abs(ahead) <= SKEW:
        yield ok(f"{ahead * 1000:+.0f} ms")
        return
    text = f"{duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
    why = "orchestrate corrects the times of log lines; certificates and tools such as make may fail"
    yield Judgment(Level.WARN, text, why)


def _port(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    """Check the task ports: taken, or among those that the kernel assigns to outgoing connections."""
    listen = report.listen
    if listen.busy:
        holders = {taken.port: _holder(taken) for taken in sorted(listen.busy, key=lambda taken: taken.port)}
        why = "; ".join(f"{port}: {holder}" for port, holder in holders.items())
        yield Judgment(Level.FAIL, f"{', '.join(map(str, holders))} taken", why)
        return
    low, high = report.facts.machine.ports or (32768, 60999)
    unsafe = ",".join(str(port) for port in report.ports if low <= port <= high)
    listed = ", ".join(map(str, report.ports))
    if not unsafe:
        yield ok(listed)
        return
    why = f"the kernel uses {low} to {high} for outgoing connections: one may take the port first"
    reserve = f"`sysctl net.ipv4.ip_local_reserved_ports={unsafe}`"
    hint = f"set `task_port` below {low} in hosts.toml, or run {reserve} there as root"
    yield Judgment(Level.WARN, listed, why, hint)


def _holder(taken: wire.Busy) -> str:
    """Return the run or process on a port; without the task, which differs from host to host."""
    holder = taken.holder
    if isinstance(holder, wire.Lessee) and holder.run is not None:
        return f"run {holder.run} ({holder.owner})"
    return taken.words


_LIMITS: Mapping[str, tuple[str, Callable[[int], str], str]] = {  # see setrlimit(2)
    "RLIMIT_CPU": (
        "{} of processor time", duration, "the kernel kills a process that has used it up (`ulimit -t`)"
    ),
    "RLIMIT_FSIZE": (
        "files of at most {}", size, "a larger checkpoint, package, or log cannot be written (`ulimit -f`)"
    ),
    "RLIMIT_AS": (
        "{} of address space", size, "frameworks reserve more of it than they use as memory (`ulimit -v`)"
    ),
}  # fmt: skip


def _limits(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    """Check hard limits of the login that end a task, perhaps only after hours."""
    for name, (text, unit, why) in _LIMITS.items():
        limit = report.facts.machine.limits.get(name)
        if limit:
            yield Judgment(Level.WARN, text.format(unit(limit)), why)


def _linger(report: HostReport, _needs: Needs) -> Iterator[Judgment]:
    consequences = [why for name, why in _LEFT_BEHIND.items() if name in report.facts.machine.logout]
    if consequences:
        hint = f"`loginctl enable-linger {shlex.quote(report.hello.user)}` there"
        yield Judgment(Level.WARN, "off", "; ".join(consequences), hint)


def _gpu(report: HostReport, needs: Needs) -> Iterator[Judgment]:
    gpus, devices = report.facts.gpus, report.host.devices or ()
    present = sorted({str(gpu.index) for gpu in gpus})
    missing = [device for device in devices if device.isdigit() and device not in present]
    if gpus:
        yield ok(f"{len(gpus)} x {', '.join(dict.fromkeys(gpu.name for gpu in gpus))}")
    if devices and not gpus and not report.facts.gpu_error:  # the `health` check reports that
        why = f"`devices` names {', '.join(devices)}, but nvidia-smi shows none (or is not installed)"
        hint = "run `nvidia-smi` on that host to see why; or remove `devices`"
        yield Judgment(Level.FAIL, "none seen", why, hint)
    elif missing and gpus:
        why = f"`devices` names {', '.join(missing)}; the machine has {', '.join(present)}"
        hint = set_key("devices", "GPUs that exist there")
        yield Judgment(Level.FAIL, f"no GPU {', '.join(missing)}", why, hint)
    visible = report.imported.gpus if report.imported is not None else None
    framework = FRAMEWORKS[needs.framework]
    per_task = len(devices) // (1 if framework.shows_all else max(1, report.host.tasks))
    if visible is not None and visible < per_task:
        why = f"`devices` gives each task {count(per_task, 'GPU')}; the driver or CUDA does not match"
        hint = "compare the driver that `nvidia-smi` shows with the CUDA version that the build needs"
        if needs.framework is FrameworkName.TENSORFLOW:
            hint += "; `pip install 'tensorflow[and-cuda]'` brings CUDA and cuDNN"
        yield Judgment(Level.FAIL, f"{framework.title} sees {visible} of {per_task}", why, hint)


def described(report: HostReport) -> HostDescribed:
    """Return the description of a host: the machine, and its packages."""
    machine, versions = report.facts.machine, report.facts.packages
    packages = {"python": report.facts.python.version, **{name: versions.get(name) for name in PACKAGES}}
    return HostDescribed(
        report.name,
        machine.processor,
        machine.cpus,
        machine.memory,
        machine.kernel,
        machine.driver,
        tuple(gpu.name for gpu in report.facts.gpus),
        {name: version for name, version in packages.items() if version},
    )


_LEFT_BEHIND = {  # settings of systemd, and their consequences
    "KillUserProcesses": (
        "systemd ends a user's remaining processes (KillUserProcesses): a lost connection ends the run"
    ),
    "RemoveIPC": (
        "systemd deletes a user's shared memory when the last session ends (RemoveIPC): "
        "a lost connection breaks data loaders"
    ),
}

CHECKS = (
    Check("login", each(_login)),
    Check("agent", each(_agent), fix=set_key("agent_python", "Python 3.8 or newer")),
    Check("setup", each(_setup), fix="run that `setup` there, in `bash -l`, and fix it under [job]"),
    Check("python", each(_python)),
    *(Check(row.package, each(_framework(name))) for name, row in FRAMEWORKS.items() if row.package),
    Check("tf_keras", each(_tf_keras)),
    Check("import", each(_import)),
    Check("r", each(_r), fix=_DEBIAN),
    Check(
        "shm",
        each(_shm),
        fix="`docker run --shm-size=1g`, or `mount -o remount,size=1g /dev/shm` as root",
    ),
    Check("state", each(_state), fix=set_key("state", "a folder of your own on a local disk")),
    Check("workdir", each(_workdir), fix=set_key("workdir", "a folder with room that this user may write")),
    Check("disk", each(_disk)),
    Check("clock", each(_clock), fix="`timedatectl set-ntp true` there as root, or `chronyc makestep`"),
    Check(
        "port",
        each(_port),
        fix="set another `task_port` in hosts.toml, or end that process (a run: `orchestrate stop RUN`)",
    ),
    Check(
        "limits",
        each(_limits),
        fix="have root raise it for your user in /etc/security/limits.conf there",
    ),
    Check("linger", each(_linger)),
    Check("gpu", each(_gpu)),
    Check("health", health),
)
