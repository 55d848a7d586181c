"""The protocol of controller and node: every request and reply as a type with bounds. Pure.

The controller's side only; a node is shipped with the standard library alone and takes plain dicts.
"""

from orchestrator.wire.machine import *
from orchestrator.wire.message import *
from orchestrator.wire.store import *
from orchestrator.wire.tasks import *
