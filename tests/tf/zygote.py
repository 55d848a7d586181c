"""The process that has imported TensorFlow, and what becomes of those that tests/command.py forks from it.

An import of TensorFlow takes three seconds of a core, and the tests start more than a hundred tasks. What is
forked is a process of its own in a session of its own. Imported by the Python that trains, too.
"""

import os
import random
import runpy
import sys

from tests import command

ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "grpc_proxy": ""}
PROGRAM = "from tests.tf.zygote import serve; serve()"


def serve() -> None:
    """Fork for each request, and be the process that `python -m MODULE ARGS` would have been there."""
    import numpy as np
    import tensorflow as tf

    tf.keras.Model  # noqa: B018 - tf_keras is loaded when first asked for
    request, streams = command.fork_for_each_request()
    os.setsid()
    command.become(request, streams)
    random.seed()
    np.random.seed()  # noqa: NPY002 - the one that programs use
    sys.path[0] = request["cwd"]
    module, *arguments = request["words"]
    sys.argv = ["", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
