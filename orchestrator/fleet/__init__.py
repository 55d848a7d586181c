"""Sessions with the agents of many hosts, and the questions that are put to all of them at once."""

from orchestrator.fleet.fleet import Answers, Fleet, host_name
from orchestrator.fleet.session import Cancelled, Lost, Session, TaskNews
