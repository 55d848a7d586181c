"""A process that has imported TensorFlow, from which tests/command.py forks the training tasks.

Importing TensorFlow takes three seconds of CPU time, and the tests start more than a hundred tasks. Each task
is a separate process in its own session. This module is also imported by the training Python.
"""

import os
import random
import runpy
import sys

from tests import command

ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "grpc_proxy": ""}
PROGRAM = "from tests.tf.zygote import serve; serve()"


def serve() -> None:
    """Fork for each request, and act as `python -m MODULE ARGS` in the child."""
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
