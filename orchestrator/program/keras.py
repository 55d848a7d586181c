"""Which Keras a run needs: by what the run is, and by what its program does. Pure.

Measured with TensorFlow 2.21, Keras 3.15 and tf_keras 2.21 on one, two and four tasks:

    one task                    Keras 3 is right, but for CentralStorageStrategy, whose losses are wrong, and
                                for programs that use what only Keras 2 had
    several workers, tf.keras   tf_keras is right (TF_USE_LEGACY_KERAS=1)
    several workers, keras      Keras 3, with two functions of its trainer answered, is exact
    parameter servers           `fit` of Keras 3 fails: tf_keras, also under the name `keras`
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.model import KerasHook
from orchestrator.program.texts import parsed

KERAS = "ORCHESTRATE_KERAS"  # read by our sitecustomize in each task
_OFF = "turn off with legacy_keras = false under [job]"

WHY = {
    KerasHook.MEND: "so that model.fit of Keras 3, which it imports, works on several tasks; " + _OFF,
    KerasHook.ALIAS: "so that `import keras` gives tf_keras, for Keras 3 cannot train this run; " + _OFF,
}

# What Keras 3.15 lacks of tf_keras 2.21, as programs write it.
_KERAS_2 = re.compile(
    r"\bkeras\.(?:experimental|premade_models|estimator)\b"
    r"|\bkeras\.(?:optimizers|utils|layers|callbacks|mixed_precision)\.(?:experimental|legacy)\b"
    r"|\blayers\.(?:CuDNNLSTM|CuDNNGRU|DenseFeatures|LocallyConnected[12]D)\b"
    r"|\.(?:fit|predict|evaluate)_generator\("
)
_KERAS_LINE = re.compile(r"^\s*(?:import\s+keras|from\s+keras)\b", re.MULTILINE)


@dataclass(frozen=True)
class Choice:
    """What a task gets: why TF_USE_LEGACY_KERAS is set (None: it is not), and what our hook does."""

    legacy: str | None = None
    hook: KerasHook | None = None


def choose(wanted: bool | None, sources: Iterable[str] | None, *, trainers: int, ps: bool) -> Choice:
    """Decide for a run with so many workers and chiefs.

    `wanted` is `[job] legacy_keras`; `sources` are the texts of the program and of the modules beside it that
    it imports, None when it is worker_entry.
    """
    if wanted is False:
        return Choice()
    texts = tuple(sources or ())
    imports = any(map(imports_keras, texts))
    alias = KerasHook.ALIAS if imports else None
    if wanted:
        return Choice("as legacy_keras = true says", alias)
    if sources is None:
        return Choice(f"since worker_entry is written for Keras 2; {_OFF}")
    if ps:
        return Choice(f"because model.fit of Keras 3 fails with parameter servers; {_OFF}", alias)
    if trainers > 1:
        if imports:
            return Choice(None, KerasHook.MEND)
        return Choice(f"because model.fit of Keras 3 fails on several tasks; {_OFF}")
    if any("CentralStorageStrategy" in text for text in texts):
        return Choice(f"because Keras 3 trains wrongly under CentralStorageStrategy; {_OFF}", alias)
    if not imports and (name := next(filter(None, map(_of_keras_2, texts)), "")):
        return Choice(f"because the program uses {name}, which Keras 3 has not; {_OFF}")
    return Choice()


def _of_keras_2(source: str) -> str:
    """The first name in a program that tf.keras has as tf_keras only; "" for none."""
    code = "\n".join(line.partition("#")[0] for line in source.split("\n"))
    found = _KERAS_2.search(code)
    return found[0].removeprefix(".").removesuffix("(") if found else ""


def imports_keras(source: str) -> bool:
    """Whether a program imports the `keras` package itself; `tf.keras` is not that."""
    try:
        nodes = list(ast.walk(parsed(source)))
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
