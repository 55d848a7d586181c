"""A task's environment: orchestrate's defaults, the user's own values, TF_CONFIG last.

Secrets only pass through `values_here`: a plan contains their names. The node adds what only it can know
(PATH, VIRTUAL_ENV, the locale, ORCHESTRATE_*).
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.errors import UsageError
from orchestrator.frameworks import FRAMEWORKS, variables
from orchestrator.model import AutoShard, Data, Recipe, Role
from orchestrator.value import Value

TF_CONFIG = "TF_CONFIG"
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
DATA = "ORCHESTRATE_DATA"
KERAS = "ORCHESTRATE_KERAS"  # ours, read by the sitecustomize of tasks, like the next one
KERAS_OF = "ORCHESTRATE_KERAS_OF"
AUTO_SHARD = "ORCHESTRATE_AUTO_SHARD"
# Of these each program gets its own.
OF_PROGRAM = frozenset({LEGACY_KERAS, KERAS, AUTO_SHARD, "RETICULATE_PYTHON"})
DEVICES = "CUDA_VISIBLE_DEVICES"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Default(Value):
    """A variable that orchestrate sets by itself, and its note for users."""

    name: str
    value: str
    note: str


def name_mistake(name: str) -> str:
    """Return what is wrong with `name` as a variable of the user's, as text that follows it; or ""."""
    if name == TF_CONFIG:
        return "is set by orchestrate for each task; remove it"
    if name.upper().startswith("ORCHESTRATE_"):
        return "is reserved: orchestrate sets the variables ORCHESTRATE_..."
    if not _NAME.fullmatch(name):
        return "is not a variable name (letters, digits, and _; no digit first)"
    return ""


def check(env: Mapping[str, str], secrets: Iterable[str] = ()) -> None:
    """Raise UsageError for a variable that `--env` may not set."""
    for name in env:
        if mistake := name_mistake(name):
            raise UsageError(f"--env {name}: {mistake}")
        if name in secrets:
            raise UsageError(
                f"--env {name}: is a secret and must not be passed as a value",
                why="`secrets` under [job] names it, and options can be read by others on this machine",
                hint=f"`export {name}` in the shell where you run orchestrate; it is read from there",
            )


def defaults(
    *, devices: tuple[str, ...] | None, recipe: Recipe, place: Mapping[str, str], r_python: str | None
) -> tuple[Default, ...]:
    """Return what a task gets by default.

    `place` is its position (`orchestrate_rank.values`), `r_python` the interpreter for an R command.
    """
    several = place["size"] != "1"
    chosen = [Default("PYTHONUNBUFFERED", "1", "so that output arrives as it is printed")]
    if FRAMEWORKS[recipe.framework].has_config:
        chosen.append(
            Default("grpc_proxy", "", "so that tasks do not look for each other through an http_proxy")
        )
    chosen += [
        Default(name, value, "")
        for name, value in variables(recipe.framework, place, recipe.tuner, recipe.standalone).items()
    ]
    if recipe.legacy_keras is not None:
        chosen.append(Default(LEGACY_KERAS, "1", recipe.legacy_keras))
        if recipe.keras_of:
            chosen.append(Default(KERAS_OF, ",".join(recipe.keras_of), ""))
    parts = ["tf_keras"] * (recipe.legacy_keras is not None) + ["keras"] * several
    if recipe.repair_keras and parts:
        chosen.append(Default(KERAS, ",".join(parts), ""))
    if several and recipe.auto_shard is not AutoShard.OFF:
        why = "because of auto_shard" if recipe.auto_shard is AutoShard.DATA else ""
        chosen.append(Default(AUTO_SHARD, recipe.auto_shard.value, why))
    if r_python is not None:
        chosen.append(Default("RETICULATE_PYTHON", r_python, "so that R uses the host's `python`"))
    if devices:
        chosen.append(
            Default("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "so that `devices` counts as nvidia-smi does")
        )
        chosen.append(Default(DEVICES, ",".join(devices), "because of `devices`"))
    elif devices is not None:
        chosen.append(Default(DEVICES, "-1", "because `devices = []`"))
    elif place["role"] not in (Role.CHIEF, Role.WORKER):
        note = f"because {place['role']} tasks need no GPU; set `devices` for that host to change it"
        chosen.append(Default(DEVICES, "-1", note))
    return tuple(chosen)


def of_data(path: str, data: Data) -> dict[str, str]:
    """Return how a task finds what [data] names, below its folder on a host."""
    env = {DATA: f"{path}/files"}
    if data.sets:
        env["TFDS_DATA_DIR"] = f"{path}/tfds"
    if data.keras:
        env["KERAS_HOME"] = f"{path}/keras"
    return env


def layer(
    chosen: Iterable[Default], *user: Mapping[str, str], tf_config: str | None
) -> tuple[dict[str, str], tuple[Default, ...]]:
    """Join defaults, the user's layers (later ones win) and TF_CONFIG; also return the defaults in effect."""
    env = {name: value for values in user for name, value in values.items()}
    stood = tuple(default for default in chosen if default.name not in env)
    env = {default.name: default.value for default in stood} | env
    env.pop(TF_CONFIG, None)
    if tf_config is not None:
        env[TF_CONFIG] = tf_config
    return env, stood


def values_here(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the controller's values of `secrets`; raise UsageError with every missing one."""
    missing = [name for name in names if name not in environ]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set on this machine",
            why="`secrets` under [job] takes values from the environment of orchestrate",
            hint=f"`export {missing[0]}=...`, or remove it from `secrets`",
        )
    return {name: environ[name] for name in names}
