"""What is wrong with a command, said before anything is sent, with a fix that works."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.cli.args.parser import parse
from orchestrator.errors import HelpRequested, UsageError
from orchestrator.model import Host, Inventory
from orchestrator.program import refusals, sources
from orchestrator.program.refusals import Code
from orchestrator.sync.contents import check_builtin
from orchestrator.verbs import code

FILES: Mapping[str, str] = {
    "train.py": "import lib\nprint('trained')\n",
    "lib.py": "import pkg.data\n",
    "pkg/__init__.py": "",
    "pkg/__main__.py": "",
    "pkg/data.py": "import keras\n",
    "src/deep/train.py": "",
    "src/deep/__init__.py": "",
    "old.py": "print 'Epoch'\n",
    "open.py": "x = (1,\ny = 2\n",
    "new.py": "type X = int\n",
    "bom.py": "\ufeffprint(1)\n",
    "secret.py": "",
    ".gitignore": "secret.py\nout/\n",
    "ready.sh": "#!/bin/sh\necho ran\n",
    "windows.sh": "#!/bin/bash\r\nset -e\r\necho ran\r\n",
    "tools/windows": "#!/usr/bin/env python3\r\nprint(1)\r\n",
    "windows.py": "print(1)\r\n",
    "prepare": "#!/usr/bin/env -S python3 -u\nprint(1)\n",
    "notes": "no program",
    "my script.py": "",
}
BYTES: Mapping[str, bytes] = {
    "latin.py": b"x = '\xe9'\n",
    "declared.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "compiled": b"\x7fELF\x02\x01\x01\0",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lint") / "project"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")
    (root / "out").mkdir()
    for name, data in BYTES.items():
        (root / name).write_bytes(data)
    for name in ("ready.sh", "compiled"):
        (root / name).chmod(0o755)
    (root.parent / "beside.py").write_text("")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def look(project: Path) -> Code:
    inventory = Inventory((Host("gpu-1", "gpu-1", "gpu-1"),))
    with contextlib.chdir(project):
        return code.look(inventory, code.project(inventory, None))


# (the command line, what is wrong, what to type)
MISTAKES = [
    ("'python train.py | tee log'", "is for a shell", "-- bash -o pipefail -c 'python train.py | tee log'"),
    ("'python train.py --lr 1'", "is for a shell", "`orchestrate launch -- python train.py --lr 1`"),
    ("train.py '|' tee log", "| is for a shell", "-- bash -o pipefail -c 'python train.py | tee log'"),
    ("A=1 B='x y' python train.py", "A=1 is for a shell", "launch --env A=1 --env 'B=x y' -- python"),
    ("CUDA_VISIBLE_DEVICES=0 train.py", "for a shell", "launch --env CUDA_VISIBLE_DEVICES=0 -- train.py`"),
    ("'A=1 python train.py'", "for a shell", "launch --env A=1 -- python train.py`"),
    ("'python train.py $X'", "for a shell", "bash -o pipefail -c 'python train.py $X'"),
    ("../beside.py", "lies outside of the folder", "-- beside.py"),
    ("HERE/train.py --lr 1", "is where the code lies", "`orchestrate launch -- train.py --lr 1`"),
    ("python -u trian.py --lr 1", "there is no trian.py here", None),
    ("./raedy.sh 3", "there is no ./raedy.sh here", None),
    ("ready.sh --lr 1", "ready.sh is in the code", "`orchestrate launch -- sh ready.sh --lr 1`"),
    ("nice -n 5 ready.sh", "ready.sh is in the code", "`orchestrate launch -- nice -n 5 sh ready.sh`"),
    ("prepare x", "prepare is in the code", "`orchestrate launch -- python3 prepare x`"),
    ("bash windows.sh", "windows.sh has Windows line ends", "`sed -i 's/\\r$//' windows.sh`"),
    ("./windows.sh", "./windows.sh has Windows line ends", None),
    ("tools/windows", "tools/windows has Windows line ends", None),
    ("secret.py", "is here, and would not be sent", "git check-ignore -v secret.py"),
    ("old.py", "old.py, line 1: Missing parentheses", "python -m py_compile old.py"),
    ("nice -n 5 python open.py", "open.py, line 1: '(' was never closed", None),
    ("python latin.py", "latin.py, line", None),
]


def command_of(line: str, project: Path) -> tuple[str, ...]:
    return tuple(shlex.split(line.replace("HERE", str(project))))


@pytest.mark.parametrize(("line", "what", "way"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_is_one_error_with_a_fix_that_we_take(
    project: Path, line: str, what: str, way: str | None
) -> None:
    command = command_of(line, project)
    with pytest.raises(UsageError) as caught:
        refusals.check(command, look(project))
    assert what in caught.value.what
    assert way is None or way in caught.value.hint
    for quoted in caught.value.hint.split("`")[1::2]:
        words = shlex.split(quoted)
        if words[:2] != ["orchestrate", "launch"]:
            continue
        parsed = parse(words[1:])
        moved = any("beside" in word for word in parsed.command)
        refusals.check(tuple(parsed.command), look(project.parent if moved else project))


GOOD = [
    "",
    "python train.py",
    "python windows.py",
    "windows.py",
    "notes",
    "bash ready.sh",
    "other.sh",
    "python3 -W ignore -u train.py -m x",
    "python -m worker_entry --epochs 3",
    "bash -c 'python train.py | tee log'",
    "./ready.sh",
    "./compiled --fast",
    "/opt/on/the/hosts.py",
    "--epochs 3",
    "new.py",
    "bom.py",
    "'my script.py'",
    "train.py '>=2'",
    "Rscript -e 'x <- 1; y'",
    "env A=1 python train.py",
    "declared.py",
    f"bash -c 'python train.py {'--x ' * 2000}'",
    "conda run -n tf python train.py",
]


@pytest.mark.parametrize("line", GOOD)
def test_nothing_is_said_of_what_may_be_right(project: Path, line: str) -> None:
    refusals.check(tuple(shlex.split(line)), look(project))


def test_a_setup_may_make_the_program(project: Path) -> None:
    """`setup = "make"`."""
    refusals.check(("./build/train",), replace(look(project), prepared=True))


@pytest.mark.parametrize(
    "line",
    [
        "bash -c 'cd . && python -u train.py --x | tee log'",
        "bash start.sh",
        "bash continued.sh",
        "bash -c '${PYTHON:-python3} train.py'",
        'bash -c \'python "train.py" "$@"\'',
        "nice -n 5 python train.py",
        "conda run -n tf python train.py",
        "env A=1 ./start.sh",
    ],
)
def test_a_program_that_a_shell_runs_is_read_as_well(line: str) -> None:
    """What it imports decides which Keras it gets, however it is started."""
    texts = {"start.sh": "#!/bin/bash\n# python old.py\nset -e\npython train.py --epochs $1\n", **FILES}
    texts["continued.sh"] = "python3 \\\n  -u \\\n  train.py \\\n  --epochs 3\n"
    command = tuple(shlex.split(line))
    paths = [source.path for source in sources.read(command, texts.get)]
    assert paths == ["train.py", "lib.py", "pkg/__init__.py", "pkg/data.py"]


def test_a_module_is_read_and_what_a_shell_only_mentions_is_not(project: Path) -> None:
    assert code.read(("python", "-m", "pkg.data"), look(project))[0].text == FILES["pkg/data.py"]
    for line in ("bash -c 'echo train.py'", "bash -c 'mypython train.py'", "bash", "bash -c", "./nothing.sh"):
        assert code.read(tuple(shlex.split(line)), look(project)) == ()


def test_options_of_worker_entry_are_judged_here(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--ephocs=3", "--epochs=x", "--epochs=0"):
        with pytest.raises(UsageError, match=r"--ep"):
            check_builtin((option,))
    with pytest.raises(HelpRequested) as caught:
        check_builtin(("--help",))
    assert "--epochs" in caught.value.text
    assert capsys.readouterr() == ("", "")
