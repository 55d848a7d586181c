"""Choose the Keras of a run by what its program says: the same for one task and for many. Pure.

    the program                                tf.keras    import keras
    uses tf.keras, or cannot be read           Keras 2     Keras 3, and the run says that both are there
    imports keras or a package built on it     Keras 3     Keras 3
    uses what only Keras 3 has (keras.ops)     Keras 3     Keras 3
    does not use Keras                         nothing is set
    worker_entry                               Keras 2     -

Keras 2 is the package tf_keras, by TF_USE_LEGACY_KERAS=1. The tutorials of tf.distribute are written for it,
and its `fit` works on several tasks; that of Keras 3 is repaired there (node/hook/site_tensorflow.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.program.sources import imports

_PACKAGES = frozenset(("keras", "keras_cv", "keras_hub", "keras_nlp", "keras_rs"))
# What Keras 3.15 has and tf_keras 2.21 lacks, as programs write it.
_KERAS_3 = re.compile(
    r"\bkeras\.(?:ops|random|config|distribution|distillation|dtype_policies|quantizers|remat|tree|visualization"
    r"|wrappers|Variable|KerasTensor|Function|Operation|StatelessScope)\b"
    r"|\bkeras\.layers\.(?:RMSNormalization|GroupQueryAttention|TFSMLayer|Pipeline|RandAugment|MixUp|CutMix)\b"
    r"|\bkeras\.optimizers\.(?:Lamb|Muon)\b|\bkeras\.utils\.PyDataset\b|\bkeras\.callbacks\.SwapEMAWeights\b"
)
_CONFIG = re.compile(r"TF_CONFIG|luster_?[Rr]esolver|\bestimator\b|RunConfig|(?:distribute|train)\.Server\b")
_OFF = "legacy_keras = false under [job] makes it Keras 3"


@dataclass(frozen=True)
class Choice:
    """Why Keras 2 is what tf.keras is (None: it is not), and what the run says of Keras 3."""

    legacy: str | None = None
    keras_3: str | None = None


def choose(wanted: bool | None, sources: Iterable[str] | None, *, several: bool, ps: bool) -> Choice:
    """Decide for a run.

    `wanted` is `[job] legacy_keras`; `sources` are the texts of the program and of the modules beside it that
    it imports: none where it cannot be read, None when it is worker_entry.
    """
    texts = tuple(map(_without_comments, sources or ()))
    if wanted is None and texts and not any("keras" in text.lower() for text in texts):
        return Choice()
    shows = next(filter(None, map(_shows_keras_3, texts)), "")
    if wanted or (wanted is None and not shows):
        reason = "as legacy_keras = true says" if wanted else f"on one task as on several; {_OFF}"
        return Choice(f"so that tf.keras is Keras 2 (tf_keras), {reason}")
    why = f"the program uses {shows}" if wanted is None else "as legacy_keras = false says"
    wrong = "parameter servers" if ps else "CentralStorageStrategy"
    if ps or any(wrong in text for text in texts):
        return Choice(None, f"Keras 3, {why}: its `fit` is wrong with {wrong}; write tf.keras for Keras 2")
    return Choice(None, f"Keras 3, {why}" + ("; its `fit` is repaired for several tasks" if several else ""))


def reads_config(sources: Iterable[str] | None) -> bool:
    """Return False for a program whose text shows that it does not look at TF_CONFIG itself."""
    texts = tuple(sources or ())
    return not texts or any(map(_CONFIG.search, texts))


def _without_comments(source: str) -> str:
    return "\n".join(line.partition("#")[0] for line in source.split("\n"))


def _shows_keras_3(source: str) -> str:
    """Name what in a program shows that it is written for Keras 3; "" for nothing."""
    if package := imported(source):
        return f"`import {package}`"
    name = _KERAS_3.search(source)
    return name[0] if name else ""


def imported(source: str) -> str:
    """Name the package of Keras 3 that a program imports by its own name; `tf.keras` is none."""
    return next((name for name in imports(source) if name in _PACKAGES), "")
