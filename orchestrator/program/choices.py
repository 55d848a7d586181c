"""Choose a run's framework and Keras by what its command starts and its program imports. Pure.

A program that uses several frameworks counts as the one that it trains with on several tasks, as far as its
text shows. Unreadable programs, and those that show no framework, have none. For any number of tasks, Keras
is:

    the program                                tf.keras    import keras
    uses tf.keras, or cannot be read           Keras 2     Keras 3, and the run notes that both are present
    imports keras or a package built on it     Keras 3     Keras 3
    uses what only Keras 3 has (keras.ops)     Keras 3     Keras 3
    does not use Keras                         nothing is set
    worker_entry                               Keras 2     -

Keras 2 is the package tf_keras, selected by TF_USE_LEGACY_KERAS=1. The tutorials of tf.distribute are
written for it, and its `fit` works on several tasks; that of Keras 3 is repaired
(node/hook/site_frameworks.py).
"""

import re
import sys
from collections.abc import Mapping, Sequence

from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import FrameworkName
from orchestrator.program.invocation import shell_code
from orchestrator.program.sources import SourceFile
from orchestrator.value import Value

BACKEND = "KERAS_BACKEND"
_IN_TEXT = re.compile(rf"""{BACKEND}['"](?P<how>\]\s*=|,)\s*['"](?P<name>\w+)['"]""")
_IMPORTS_KERAS = re.compile(r"^\s*(?:import|from)\s+keras\b", re.MULTILINE)
# Built on Keras 3, and imported by their own names; `tf.keras` is not one.
_PACKAGES = frozenset(("keras", "keras_cv", "keras_hub", "keras_nlp", "keras_rs"))
# What Keras 3.15 has and tf_keras 2.21 lacks, as programs write it.
_KERAS_3 = re.compile(
    r"\bkeras\.(?:ops|random|config|distribution|distillation|dtype_policies|quantizers|remat|tree|visualization"
    r"|wrappers|Variable|KerasTensor|Function|Operation|StatelessScope)\b"
    r"|\bkeras\.layers\.(?:RMSNormalization|GroupQueryAttention|TFSMLayer|Pipeline|RandAugment|MixUp|CutMix)\b"
    r"|\bkeras\.optimizers\.(?:Lamb|Muon)\b|\bkeras\.utils\.PyDataset\b|\bkeras\.callbacks\.SwapEMAWeights\b"
)
_CONFIG = re.compile(r"TF_CONFIG|luster_?[Rr]esolver|\bestimator\b|RunConfig|(?:distribute|train)\.Server\b")
_NEAR = re.compile(r"tensorflow|tf_|.*keras|worker_entry")  # what is built on TensorFlow
_IN_COMMAND = re.compile(r"\b(?:import|from)\s+(\w+)|\s-m\s+(\w+)")  # of `python -c` and `python -m`
_NEVER = sys.stdlib_module_names | {"tensorflow", "tf_keras", "numpy", "tensorflow_datasets"}
_MOST = 50  # modules that a task's Python inspects
_APART = ", with which `fit` trains a model of its own in each task"
_OFF = "legacy_keras = false under [job] makes it Keras 3"


def choose_framework(
    command: Sequence[str], sources: Sequence[SourceFile], env: Mapping[str, str], shell: str
) -> tuple[FrameworkName, str]:
    """Return the framework, and the evidence for it; `shell` is the text of a script that it runs."""
    line = " ".join(command)
    for name, framework in FRAMEWORKS.items():
        if start := framework.starts.search(line):
            return name, f"the command starts {start[0].strip(' /')}"
    modules = dict.fromkeys(module for source in sources for module in source.imports)
    modules |= dict.fromkeys(match[1] or match[2] for match in _IN_COMMAND.finditer(line))
    texts = [source.text for source in sources]
    backend = next(filter(None, (_backend(text, env) for text in texts)), "")
    shown = {
        name: module
        for name, framework in FRAMEWORKS.items()
        if (module := next(filter(framework.imports.__contains__, modules), ""))
    }
    if "keras" in modules:
        for name, framework in FRAMEWORKS.items():
            if backend == name is not FrameworkName.TENSORFLOW:
                apart = name is FrameworkName.TORCH and not any(map(framework.spreads.search, texts))
                return name, f"{BACKEND} is {backend}{_APART * apart}"
        shown.setdefault(FrameworkName.TENSORFLOW, "keras")
    trains = [name for name in shown if any(map(FRAMEWORKS[name].spreads.search, texts))]
    names = trains if len(trains) == 1 else [*shown]
    if not names:
        # What it starts: a launcher's options may hide the program from us.
        for name, framework in FRAMEWORKS.items():
            if start := framework.starts.search(shell_code(shell)):
                return name, f"the script starts {start[0].strip('/').strip()}"
        near = next(filter(_NEAR.match, modules), "")
        if not near:
            return FrameworkName.AUTO, "the program imports none"
        names, shown = [FrameworkName.TENSORFLOW], {FrameworkName.TENSORFLOW: near}
    why = f"the program imports {' and '.join(shown[name] for name in names)}"
    return names[0] if len(names) == 1 else FrameworkName.TENSORFLOW, why


def _backend(text: str, env: Mapping[str, str]) -> str:
    """Return the backend of Keras, as set before its import; `env` wins over a mere default."""
    imported = _IMPORTS_KERAS.search(text)
    setting = _IN_TEXT.search(text, 0, imported.start() if imported else len(text))
    if setting is None:
        return env.get(BACKEND, "")
    return env.get(BACKEND, setting["name"]) if setting["how"] == "," else setting["name"]


class KerasChoice(Value):
    """Why tf.keras is Keras 2 (None: it is not), and the run's note on Keras 3."""

    legacy: str | None = None
    keras_3: str | None = None
    modules: tuple[str, ...] = ()  # modules of the program; one that is built on Keras 3 makes it that


def choose_keras(requested: bool | None, sources: Sequence[SourceFile], *, ps: bool) -> KerasChoice:
    """Choose the Keras of a run.

    `requested` is `[job] legacy_keras`; `sources` are the program and the modules next to it that it imports:
    none if it cannot be read, or is worker_entry.
    """
    texts = [source.code for source in sources]
    if requested is None and texts and not any("keras" in text.lower() for text in texts):
        return KerasChoice()
    names = (match[0] for match in map(_KERAS_3.search, texts) if match)
    packages = (name for source in sources for name in source.imports if name in _PACKAGES)
    shows = next((f"`import {package}`" for package in packages), next(names, ""))
    if requested or (requested is None and not shows):
        reason = "because legacy_keras = true" if requested else f"with one task or several; {_OFF}"
        named = dict.fromkeys(name for source in sources for name in source.modules if not requested)
        others = [name for name in named if name.split(".")[0] not in _NEVER]
        return KerasChoice(f"so that tf.keras is Keras 2 (tf_keras), {reason}", modules=tuple(others[:_MOST]))
    why = f"the program uses {shows}" if requested is None else "because legacy_keras = false"
    wrong = "parameter servers" if ps else "CentralStorageStrategy"
    if ps or any(wrong in text for text in texts):
        return KerasChoice(
            None, f"Keras 3, {why}: its `fit` is wrong with {wrong}; write tf.keras for Keras 2"
        )
    return KerasChoice(None, f"Keras 3, {why}")  # only a task can tell whether its version is repaired


def reads_config(sources: Sequence[SourceFile]) -> bool:
    """Return False for a program whose text shows that it does not read TF_CONFIG itself."""
    return not sources or any(_CONFIG.search(source.code) for source in sources)
