"""The training program: what `launch` runs when the user brings none, and what validates a node.

Read as one way to write distributed TensorFlow today: `options` (what can be asked) -> `cluster` (who we are,
from TF_CONFIG) -> `training` (the whole job) -> `strategy`, `data/`, `job` (the model), `fit` and `loops`.
A wrong option is refused before TensorFlow is imported, by `training`.
"""
