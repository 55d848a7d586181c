"""What a process like a task's could import: versions that are true, and why it could not. Pure."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator

from orchestrator import wire
from orchestrator.checks.seen import PACKAGES_PAGE, Needs, Seen
from orchestrator.events import Check, CheckReported, Level

# The distribution that brings a module, where it has another name; of tensorflow there are several.
_BRINGS = {
    "google.protobuf": "protobuf",
    "google": "protobuf",
    "absl": "absl-py",
    "tf_keras": "tf_keras",
    "tensorflow_datasets": "tensorflow-datasets",
}
_MISSING = "ModuleNotFoundError: No module named "
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REASONS = 400  # characters


def of_imports(seen: Seen, needs: Needs) -> Iterator[CheckReported]:
    """An `import` that fails for the first module that cannot be imported; fine where all can."""
    imported = seen.imported
    if imported is None:
        return
    broken = next((one for one in imported.modules if one.error), None)
    if broken is not None:
        yield _broken(seen, needs, broken.name, broken.error)
    elif imported.ended:
        what = f"importing {imported.importing}" if imported.importing else "at its start"
        yield seen.says(Check.IMPORT, Level.FAIL, f"Python ended {what}", *_ended(seen, imported))
    else:
        yield seen.says(Check.IMPORT, Level.OK, "ok")
        yield from _gpus(seen)


def _broken(seen: Seen, needs: Needs, module: str, error: str) -> CheckReported:
    hint, fix = _way_out(seen, needs, module, error)
    found = f"{module} cannot be imported"
    return seen.says(Check.IMPORT, Level.FAIL, found, error[:_REASONS], hint, fix=fix)


def _way_out(seen: Seen, needs: Needs, module: str, error: str) -> tuple[str, tuple[str, ...]]:
    """What to do, and the command if one does it."""
    if error.startswith("PermissionError") or "Permission denied" in error:
        return "run `chmod -R a+rX` on that folder, as its owner", ()
    if missing := error.startswith(_MISSING):
        module = error.removeprefix(_MISSING).lstrip("'").partition("'")[0].partition(".")[0]
    if not seen.is_made(needs):
        return _install(seen, module) if _NAME.fullmatch(module) else ("", ())
    if missing and not seen.facts.packages.get(_package(seen, module)) and _NAME.fullmatch(module):
        wanted = f"add {distribution(seen, module)} to the `packages` of [env] ({PACKAGES_PAGE})"
        return f"{wanted}, then `orchestrate setup`", ()
    fix = _removal(seen)
    first = f"`orchestrate exec --only {seen.name} -- {shlex.join(fix)}`, then " if fix else ""
    return f"{first}`orchestrate setup`", fix


def _install(seen: Seen, module: str) -> tuple[str, tuple[str, ...]]:
    """Again what is there, in the same version and of the same distribution; else what is missing."""
    name = distribution(seen, module)
    version = seen.facts.packages.get(_package(seen, module))
    if version:
        return seen.pip("--force-reinstall", "--no-deps", f"{name}=={version}")
    return seen.pip(name)


def _package(seen: Seen, module: str) -> str:
    return distribution(seen, module).replace("_", "-")


def _removal(seen: Seen) -> tuple[str, ...]:
    """An environment of ours that is complete by its name is not made again: first it has to go."""
    folder = (seen.facts.python.path or "").removesuffix("/bin/python")
    return ("rm", "-rf", folder) if "/envs/" in folder and not folder.endswith("/") else ()


def distribution(seen: Seen, module: str) -> str:
    """The distribution that is installed for a module."""
    if module == "tensorflow":
        return seen.distribution or "tensorflow"
    return _BRINGS.get(module, module)


def _ended(seen: Seen, imported: wire.Imported) -> tuple[str, str]:
    if imported.signal == signal.SIGILL:
        return (
            "SIGILL: the processor lacks an instruction that this build uses, such as AVX",
            "install a build for it (`grep -c avx /proc/cpuinfo` there), or leave the host out",
        )
    if imported.signal == signal.SIGKILL:
        return "SIGKILL: the kernel was out of memory, or a limit of the container", "look at `dmesg` there"
    python = shlex.quote(seen.facts.python.path or "python3")
    return imported.ended, f"run `{python} -c 'import tensorflow'` there"


def _gpus(seen: Seen) -> Iterator[CheckReported]:
    """What TensorFlow sees counts, and not what nvidia-smi shows."""
    count = seen.imported.gpus if seen.imported is not None else None
    wanted = len(seen.host.devices or ()) // max(1, seen.host.tasks)
    if count is not None and count < wanted:
        why = f"`devices` gives each task {wanted}; the driver, CUDA and cuDNN do not fit this TensorFlow"
        hint = (
            "compare the driver that `nvidia-smi` shows there; `pip install 'tensorflow[and-cuda]'` brings"
            " CUDA and cuDNN along"
        )
        yield seen.says(Check.GPU, Level.FAIL, f"TensorFlow sees {count} of {wanted}", why, hint)
