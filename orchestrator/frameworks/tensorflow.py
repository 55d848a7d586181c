"""TensorFlow: its TF_CONFIG, which has roles, is made in planning/plan.py."""

from __future__ import annotations

import re

from orchestrator.frameworks.framework import Framework

_PROBE = """
if gpus and "tensorflow" in sys.modules:
    import tensorflow
    cuda = tensorflow.sysconfig.get_build_info().get("cuda_version", "none")
    write({"gpus": len(tensorflow.config.list_physical_devices("GPU")), "built": "CUDA " + str(cuda)})
"""

TENSORFLOW = Framework(
    "TensorFlow",
    imports=frozenset({"tensorflow", "tf_keras"}),
    package="tensorflow",
    packages={
        "protobuf": "google.protobuf",
        "tensorflow": "tensorflow",
        "tf-keras": "tf_keras",
        "keras": "keras",
        "tensorflow-datasets": "tensorflow_datasets",
    },
    probe=_PROBE,
    validation=("worker_entry", "--validate"),
    spreads=re.compile(r"tf\.distribute|MultiWorkerMirrored|MirroredStrategy|ParameterServer|TF_CONFIG"),
)
