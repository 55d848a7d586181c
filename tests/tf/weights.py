"""Run by the training Python: the largest difference between the newest checkpoints of two folders.

Prints one JSON line: {"variables": how many were compared, "steps": [both], "apart": the largest difference}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


def variables(folder: str) -> dict[str, Any]:
    """Return weights and optimizer state of the newest checkpoint in any task's folder."""
    found = [tf.train.latest_checkpoint(str(sub)) for sub in Path(folder).glob("*/")]
    newest = max(filter(None, found), key=lambda path: int(path.rpartition("-")[2]))
    reader = tf.train.load_checkpoint(newest)
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
    kept = [name for name in names if name.startswith(("model/layer", "optimizer/", "step/"))]
    return {name: reader.get_tensor(name) for name in kept}


one, other = variables(sys.argv[1]), variables(sys.argv[2])
assert one.keys() == other.keys(), one.keys() ^ other.keys()
apart = max(float(np.max(np.abs(one[name] - other[name]))) for name in one)
steps = [int(values["step/.ATTRIBUTES/VARIABLE_VALUE"]) for values in (one, other)]
print(json.dumps({"variables": len(one), "steps": steps, "apart": apart}))
