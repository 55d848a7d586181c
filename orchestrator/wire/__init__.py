"""The protocol of controller and node: every request and reply as a type with bounds. Pure.

The controller's side only: a node receives only the standard library's tools and handles plain dicts.
"""

from orchestrator.wire.machine import *
from orchestrator.wire.message import *
from orchestrator.wire.store import *
from orchestrator.wire.tasks import *
