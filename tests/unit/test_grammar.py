"""Which Python a program's grammar needs."""

from __future__ import annotations

import pytest

from orchestrator.program.grammar import least

MATCH = "import os\nmatch os.name:\n    case 'posix':\n        pass\n"
GROUPS = "try:\n    pass\nexcept* ValueError:\n    pass\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], (0, "")),
        ([("train.py", "print(1)\n")], (0, "")),
        ([("train.py", "if (n := 3) > 2:\n    pass\n")], (0, "")),
        ([("train.py", MATCH)], (10, "train.py: pattern matching")),
        ([("train.py", MATCH), ("lib.py", GROUPS)], (11, "lib.py: exception groups")),
        ([("train.py", "def broken(:\n")], (0, "")),
        ([("train.py", "x = '\0'")], (0, "")),
        ([("train.py", "(" * 5000)], (0, "")),
    ],
)
def test_the_oldest_python_that_compiles_it(files: list[tuple[str, str]], found: tuple[int, str]) -> None:
    assert least(files) == found
