"""What must be in the environment before TensorFlow is imported; what the user set always wins."""

from __future__ import annotations

import os
from collections.abc import MutableMapping


def prepare(env: MutableMapping[str, str] = os.environ) -> None:
    # Keras 3 cannot `fit` under MultiWorkerMirroredStrategy; with this tf.keras is tf_keras (Keras 2).
    env.setdefault("TF_USE_LEGACY_KERAS", "1")
    # Three lines of hardware notes per task hide the lines that matter; errors still show.
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # gRPC follows http_proxy between our own tasks and then hangs in silence.
    env.setdefault("grpc_proxy", "")
