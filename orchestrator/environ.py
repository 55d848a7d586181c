"""The environment a task gets from us: the tool's defaults, the user's own values, TF_CONFIG last.

What is secret never passes through here but for `secret_values`: a plan holds only the names.
The node adds what only it can know (PATH, VIRTUAL_ENV, the locale, ORCHESTRATE_*).
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.errors import UsageError
from orchestrator.model import Role

TF_CONFIG = "TF_CONFIG"
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
DEVICES = "CUDA_VISIBLE_DEVICES"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KERAS_LINE = re.compile(r"^\s*(?:import\s+keras|from\s+keras)\b", re.MULTILINE)


@dataclass(frozen=True)
class Default:
    """A variable the tool sets by itself, and the sentence that says so."""

    name: str
    value: str
    note: str


def name_mistake(name: str) -> str:
    """What is wrong with `name` as a variable the user wants to set, or ""."""
    if name == TF_CONFIG:
        return "orchestrate writes TF_CONFIG itself, for each task; it cannot be set by hand"
    if name.upper().startswith("ORCHESTRATE_"):
        return "names with ORCHESTRATE_ are orchestrate's own"
    if not _NAME.fullmatch(name):
        return "is not a name for a variable (letters, digits and _, and no digit first)"
    return ""


def value_mistake(value: str) -> str:
    """What is wrong with `value`, or ""."""
    return "holds a NUL character, which no environment can carry" if "\0" in value else ""


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Read `--env K=V` options, the last of equal names wins; raise UsageError naming the first wrong one."""
    env: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise UsageError(f"--env {text}: has no name", hint="--env NAME=VALUE")
        if not equals:
            raise UsageError(f"--env {name}: has no value", hint=f"--env {name}=VALUE")
        env[name] = value
    check(env)
    return env


def check(env: Mapping[str, str], secrets: Iterable[str] = ()) -> None:
    """Raise UsageError for a variable that `--env` may not set."""
    for name, value in env.items():
        if mistake := name_mistake(name) or value_mistake(value):
            raise UsageError(f"--env {name}: {mistake}")
        if name in secrets:
            raise UsageError(
                f"--env {name}: is a secret and may not be given as a value",
                why="`secrets` under [job] names it, and options can be read by others on this machine",
                hint=f"export {name} where you call orchestrate; it is read from there",
            )


def legacy_keras(wanted: bool | None, script: str | None) -> tuple[str | None, str]:
    """Why Keras 2 is chosen (None: it is not), and what to say to the user when it is not.

    `wanted` is `[job] legacy_keras`; `script` the text of the Python script, if there is one.
    """
    if wanted is not None:
        return ("as legacy_keras = true says", "") if wanted else (None, "")
    if script is not None and imports_keras(script):
        return None, (
            f"left {LEGACY_KERAS} alone since the script imports keras itself; where model.fit of Keras 3"
            " fails on several tasks, set legacy_keras = true under [job]"
        )
    return (
        "because model.fit of Keras 3 fails on several tasks; turn off with legacy_keras = false under [job]",
        "",
    )


def imports_keras(source: str) -> bool:
    """Whether a script imports the `keras` package itself; `tf.keras` is not that."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own, such as an invalid escape
            nodes = list(ast.walk(ast.parse(source)))
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        # The nodes may run a newer Python than this machine, whose syntax is then no mistake.
        return _KERAS_LINE.search(source) is not None
    return any(map(_is_keras_import, nodes))


def _is_keras_import(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(alias.name.split(".")[0] == "keras" for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.split(".")[0] == "keras"
    return False


def defaults(
    *, role: Role, devices: tuple[str, ...] | None, legacy_keras: str | None, r_python: str | None
) -> tuple[Default, ...]:
    """What a task gets unless the user says otherwise.

    `legacy_keras` is the reason for Keras 2, None for none; `r_python` the interpreter for an R command.
    """
    chosen = [
        Default("PYTHONUNBUFFERED", "1", "so that output arrives as it is printed"),
        Default(
            "grpc_proxy", "", "because tasks that follow an http_proxy wait for each other without a word"
        ),
    ]
    if legacy_keras is not None:
        chosen.append(Default(LEGACY_KERAS, "1", legacy_keras))
    if r_python is not None:
        chosen.append(Default("RETICULATE_PYTHON", r_python, "so that R uses the host's `python`"))
    return (*chosen, *_device_defaults(role, devices))


def _device_defaults(role: Role, devices: tuple[str, ...] | None) -> Iterable[Default]:
    if devices:
        yield Default("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "so that `devices` counts as nvidia-smi does")
        yield Default(DEVICES, ",".join(devices), "as `devices` says")
    elif devices is not None:
        yield Default(DEVICES, "-1", "as `devices = []` says")
    elif role in {Role.PS, Role.EVALUATOR}:
        article = "an" if role is Role.EVALUATOR else "a"
        yield Default(
            DEVICES,
            "-1",
            f"since {article} {role.value} task needs no GPU; give its host `devices` to change it",
        )


def layer(
    chosen: Iterable[Default], *user: Mapping[str, str], tf_config: str
) -> tuple[dict[str, str], tuple[Default, ...]]:
    """Join defaults, the user's layers (later ones win) and TF_CONFIG; and say which defaults stood."""
    env: dict[str, str] = {}
    for values in user:
        env.update(values)
    stood = tuple(default for default in chosen if default.name not in env)
    env = {default.name: default.value for default in stood} | env
    env.pop(TF_CONFIG, None)
    env[TF_CONFIG] = tf_config
    return env, stood


def forwarded(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The controller's values of `forward`; raise UsageError naming every missing one."""
    return _taken(tuple(names), environ, "forward")


def secret_values(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The controller's values of `secrets`; raise UsageError naming every missing one."""
    return _taken(tuple(names), environ, "secrets")


def _taken(names: tuple[str, ...], environ: Mapping[str, str], key: str) -> dict[str, str]:
    missing = [name for name in names if name not in environ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"{', '.join(missing)} {verb} not set on this machine",
            why=f"`{key}` under [job] takes {'it' if len(missing) == 1 else 'them'} from the environment"
            " orchestrate is called in",
            hint=f"export {missing[0]}=..., or remove it from `{key}`",
        )
    return {name: environ[name] for name in names}
