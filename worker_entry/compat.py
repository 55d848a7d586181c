"""What differs between the versions of TensorFlow we support, in one place."""

from __future__ import annotations


def leave_keras_alone() -> None:
    """TensorFlow 2.16 does not know tf_keras as a library and rewrites all of it: 10 to 30 s per task."""
    from tensorflow.python.autograph.core import config

    rule = config.DoNotConvert("tf_keras")
    if not any(known.matches("tf_keras") for known in config.CONVERSION_RULES):
        config.CONVERSION_RULES = (rule, *config.CONVERSION_RULES)
