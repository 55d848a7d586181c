"""Training environments on the controller: uv, one lock for all hosts, wheels for some."""

from orchestrator.envs.lock import Lock, name_of, named, recipe_digest, resolve, with_python
from orchestrator.envs.platforms import Compatibility, Platform, allowed_by, specifier
from orchestrator.envs.uv import available, standalone
from orchestrator.envs.wheels import fetch, fitting, uv_for
