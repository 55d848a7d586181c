"""Sessions with the agents of many hosts, and requests to all of them at once."""

from orchestrator.fleet.fleet import Answers, Fleet
from orchestrator.fleet.session import Cancelled, Lost, Session, TaskNews
