"""Training environments, this machine's side: uv, one lock for all hosts, wheels for some."""

from orchestrator.envs.lock import Lock, name_of, named, recipe_digest, resolve, with_python
from orchestrator.envs.wheels import Platform, fetch
