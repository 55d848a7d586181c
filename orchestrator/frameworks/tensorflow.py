"""TensorFlow: its TF_CONFIG, which has roles, is made in planning/plan.py."""

from __future__ import annotations

import re

from orchestrator.frameworks.framework import Framework

TENSORFLOW = Framework(
    "TensorFlow",
    imports=frozenset({"tensorflow", "tf_keras"}),
    spreads=re.compile(r"tf\.distribute|MultiWorkerMirrored|MirroredStrategy|ParameterServer|TF_CONFIG"),
)
