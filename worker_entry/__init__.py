"""The training program: what `launch` runs when the user brings none, and what validates a node.

It is also meant to be read, as one way to write distributed TensorFlow today. The order of reading:
`options` (what can be asked) -> `cluster` (who we are, from TF_CONFIG) -> `training` (the whole job on one
page) -> `strategy`, `data/`, `job` (the model), and the loops `fit` and `loops`.
Only `training` and what it imports need TensorFlow: a wrong option is refused before that import.
"""
