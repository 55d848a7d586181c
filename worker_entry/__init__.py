"""The bundled training program: what `launch` runs without a command, and what validates a node.

Read as one way to write distributed TensorFlow today: `options` (the command line) -> `cluster` (this task's
role, from TF_CONFIG) -> `training` (the whole job) -> `strategy`, `data/`, `job` (the model), `fit` and
`loops`. `training` rejects a wrong option before TensorFlow is imported.
"""
