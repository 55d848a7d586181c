"""What will probably go wrong with a job, read from its program's text and from its plan. Pure.

A finding warns and stops nothing; a mistake that is certain is refused in `program`.

A rule says nothing that it cannot know: a program is judged by the statements that surely run, in their
order. To add a rule: its code in `codes`, a function that yields findings, its section in docs/lint.md, and
rows in tests/unit/test_findings.py. No program of tests/scripts may have a false finding.
"""

from orchestrator.findings.codes import CODES, PACKAGES, PATH, PROGRAM
from orchestrator.findings.look import Finding, Scene
from orchestrator.findings.tell import find, is_silent
