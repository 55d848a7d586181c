"""What is wrong with a command, said before anything is sent, with a fix that works."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.args.parser import parse
from orchestrator.errors import UsageError
from orchestrator.launching import code, program
from orchestrator.model import Host, Inventory
from orchestrator.program import lint, sources
from orchestrator.program.project import Code

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
    "newer2.py": 'd = []\nx = (\n  "x "\n  f"{chr(10).join(d)} {"\\n".join(d)}"\n)\n',
    "newer3.py": 'x = f"""{\n  1  # one\n}"""\n',
    "newer.py": "x = f'{'a' + f'{1}'}'\n",
    "bom.py": "\ufeffprint(1)\n",
    "secret.py": "",
    ".gitignore": "secret.py\nout/\n",
    "run.sh": "#!/bin/sh\necho ran\n",
    "plain.sh": "echo ran\n",
    "ready.sh": "#!/bin/sh\necho ran\n",
    "train.ipynb": "{}",
    "train.ipynb.py": "",
    "my script.py": "",
    "tool": "#!/usr/bin/env -S python3 -u\nprint(1)\n",
    "dos.sh": "#!/bin/sh\r\necho ran\r\n",
    "dos-if.sh": "if true\r\nthen\r\necho ran\r\nfi\r\n",
    "dos-echo.sh": "echo ran\r\n",
    "dos.py": "print(1)\r\n",
    "marked.sh": "\ufeff#!/bin/sh\necho ran\n",
    "one/only.py": "",
    "Big.py": "",
}
BYTES: Mapping[str, bytes] = {
    "utf16.py": "print(1)\n".encode("utf-16"),
    "latin.py": b"x = '\xe9'\n",
    "japanese.py": "# coding: shift_jis\nprint('表')\n".encode("shift_jis"),
    "russian.py": b"# coding: cp1251\n\xf0\xe0\xe7 = 1\n",
    "declared.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "compiled": b"\x7fELF\x02\x01\x01\0",
    "copied": b"\x7fELF\x02\x01\x01\0",
    "installer.sh": b"#!/bin/sh\nexit 0\n" + b"\0" * (3 << 20),
    "out/compiled": b"\x7fELF\x02\x01\x01\0",
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
    for name in ("ready.sh", "dos.sh", "marked.sh", "compiled", "installer.sh", "out/compiled"):
        (root / name).chmod(0o755)
    (root.parent / "beside.py").write_text("")
    (root.parent / "beside-tool").write_text("#!/bin/sh\n")
    (root.parent / "beside-tool").chmod(0o755)
    (root.parent / "link").symlink_to(root)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def look(project: Path, env: Mapping[str, str] | None = None) -> Code:
    inventory = Inventory((Host("gpu-1", "gpu-1", "gpu-1"),))
    return program.look(inventory, code.project(inventory, None, project), env or {}, project)


# (the command line, what is wrong, what to type)
MISTAKES = [
    (
        "train.ipynb",
        "train.ipynb is a notebook",
        "jupyter nbconvert --to script --output train.ipynb train.ipynb",
    ),
    ("python train.ipynb", "train.ipynb is a notebook", "orchestrate launch -- train.ipynb.py"),
    (
        "'python train.py | tee log'",
        "a line for a shell",
        "-- bash -o pipefail -c 'python train.py | tee log'",
    ),
    ("'python train.py --lr 1'", "is one word", "orchestrate launch -- python train.py --lr 1"),
    ("train.py '|' tee log", "| is a word of a shell", "-- bash -o pipefail -c 'python train.py | tee log'"),
    ("nohup python train.py '&'", "& is a word of a shell", "`orchestrate launch -- nohup python train.py`"),
    (
        "'python train.py --lr 1 &'",
        "& is a word of a shell",
        "`orchestrate launch -- python train.py --lr 1`",
    ),
    ("'python train.py | tee log &'", "a line for a shell", "bash -o pipefail -c"),
    ("python train.py '>' 'my log'", "> is a word of a shell", None),
    ("python train.py '&&' echo done", "&& is a word of a shell", None),
    ("../beside.py", "lies outside of the folder", "-- beside.py"),
    ("pkg/../../beside.py", "lies outside of the folder", None),
    ("BESIDE", "lies outside of the folder", "-- beside.py"),
    ("python -u BESIDE", "lies outside of the folder", None),
    ("../beside-tool 3", "lies outside of the folder", "-- ./beside-tool 3"),
    ("HERE/train.py --lr 1", "is where the code lies", "`orchestrate launch -- train.py --lr 1`"),
    ("python -u HERE/pkg/data.py", "is where the code lies", "-- python -u pkg/data.py"),
    ("bash HERE/plain.sh", "is where the code lies", "-- bash plain.sh"),
    ("HERE/ready.sh", "is where the code lies", "-- ./ready.sh"),
    ("HERE/compiled 3", "is where the code lies", "-- ./compiled 3"),
    ("LINK/train.py", "is where the code lies", "-- train.py"),
    ("trian.py", "there is no trian.py here", "`orchestrate launch -- train.py`"),
    (
        "python -u trian.py --lr 1",
        "there is no trian.py here",
        "`orchestrate launch -- python -u train.py --lr 1`",
    ),
    ("fit_model.py", "there is no fit_model.py here", "change to the folder"),
    ("data.py", "there is no data.py here", "-- pkg/data.py"),
    ("secret.py", "is here, and would not be sent", "git check-ignore -v secret.py"),
    ("old.py", "old.py, line 1: Missing parentheses", "python -m py_compile old.py"),
    ("python -u open.py", "open.py, line 1: '(' was never closed", None),
    ("-m work", "-m is an option of Python", "-- python -m work"),
    ("python -m work", "there is no module work in the code", None),
    ("python -m pkg.train", "there is no module pkg.train", None),
    ("python3 -u -m deep.train", "the module deep.train is not found", "--env PYTHONPATH=src -- python3"),
    ("run.sh --fast", "run.sh cannot be started", "-- bash run.sh --fast"),
    ("./run.sh", "./run.sh cannot be started", "-- bash run.sh"),
    ("plain.sh", "plain.sh cannot be started", "-- bash plain.sh"),
    ("ready.sh", "ready.sh cannot be started", "-- ./ready.sh"),
    (
        "A=1 B='x y' python train.py",
        "A=1 is not a program",
        "launch --env A=1 --env 'B=x y' -- python train.py",
    ),
    ("A=1", "A=1 is not a program", "give a command"),
    ("python train", "there is no train here", "-- python train.py"),
    ("python3 -u nothing", "there is no nothing here", "change to the folder"),
    ("nothing.ipynb", "there is no nothing.ipynb here", "change to the folder"),
    ("nice -n 5 python old.py", "old.py, line 1", None),
    ("env A=1 python trian.py", "there is no trian.py here", None),
    ("timeout 600 python -m pkg.train", "there is no module pkg.train", None),
    ("compiled --fast", "compiled cannot be started", "-- ./compiled --fast"),
    ("out/compiled", "out/compiled is here, and would not be sent", "git check-ignore -v out/compiled"),
    ("./build/fit", "there is no ./build/fit here", "change to the folder"),
    ("./raedy.sh 3", "there is no ./raedy.sh here", "-- ./ready.sh 3"),
    ("build/compiled", "there is no build/compiled here", "-- ./compiled"),
    ("tool --fast", "tool cannot be started", "-- python tool --fast"),
    ("dos.sh", "dos.sh is a text as Windows writes it", "-e 's/\\r$//' dos.sh`"),
    ("./dos.sh", "./dos.sh is a text as Windows writes it", None),
    ("nice ./dos.sh", "./dos.sh is a text as Windows writes it", None),
    ("bash dos-if.sh", "dos-if.sh is a text as Windows writes it", None),
    ("./marked.sh", "./marked.sh is a text as Windows writes it", None),
    ("utf16.py", "utf16.py is UTF-16", "iconv -f UTF-16 -t UTF-8 utf16.py"),
    ("python latin.py", "latin.py is LATIN1", None),
    ("'python train.py " + "--x " * 100 + "y'", "is one word", None),
    (".", ". is a folder", "name the script"),
    ("./one --x", "./one is a folder", "-- one/only.py --x"),
    ("pkg/", "pkg/ is a folder", "-- python pkg"),
    ("source venv/bin/activate", "source is a word of a shell", 'setup = "source venv/bin/activate"'),
    ("conda activate tf", "conda activate is a word of a shell", 'python = "'),
    ("cd pkg", "cd is a word of a shell", "change to that folder"),
    ("exec python train.py", "exec is a word of a shell", "-- python train.py"),
    ("my script.py --x", "'my script.py' arrived as 2 words", "-- 'my script.py' --x"),
    ("big.py", "there is no big.py here", "-- Big.py"),
    ("python TRAIN.py", "there is no TRAIN.py here", "-- python train.py"),
]


def command_of(line: str, project: Path) -> tuple[str, ...]:
    for word, path in (("BESIDE", "beside.py"), ("HERE", project.name), ("LINK", "link")):
        line = line.replace(word, str(project.parent / path))
    return tuple(shlex.split(line))


@pytest.mark.parametrize(("line", "what", "way"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_is_one_error_with_a_fix(project: Path, line: str, what: str, way: str | None) -> None:
    command = command_of(line, project)
    with pytest.raises(UsageError) as caught:
        lint.check(command, look(project))
    assert what in caught.value.what
    assert way is None or way in caught.value.hint


def fixes() -> Iterator[str]:
    return (line for line, *_ in MISTAKES)


@pytest.mark.parametrize("line", list(fixes()))
def test_the_fix_passes_the_checks(project: Path, line: str) -> None:
    """What we tell people to type is a command that we take."""
    command = command_of(line, project)
    with pytest.raises(UsageError) as caught:
        lint.check(command, look(project))
    for quoted in caught.value.hint.split("`")[1::2]:
        words = shlex.split(quoted)
        if words[:2] != ["orchestrate", "launch"]:
            continue
        parsed = parse(words[1:])
        moved = any("beside" in word for word in parsed.command) or line.endswith("train.ipynb")
        known = look(project.parent if moved and "ipynb" not in line else project, dict(parsed.env))
        if parsed.command != ("python", "-m", "work"):  # there is none: one thing after another
            lint.check(tuple(parsed.command), known)


GOOD = [
    "",
    "train.py --data x | y",
    "python train.py",
    "python3 -W ignore -u train.py -m x",
    "python -c 'import x; y'",
    "python -m pkg",
    "python -m pkg.data --x",
    "python -m pytest -x",
    "python -m worker_entry --epochs 3",
    "bash -c 'python train.py | tee log'",
    "bash -c 'exec python -m work'",
    "bash run.sh",
    "./ready.sh",
    "./compiled --fast",
    "./installer.sh",
    "sleep 60",
    "/opt/on/the/hosts.py",
    "~/bin/train.py",
    "--epochs 3",
    "new.py",
    "newer.py",
    "newer2.py",
    "newer3.py",
    "bom.py",
    "'my script.py'",
    "./train.py",
    "pkg/../train.py",
    "train.py '>=2'",
    "Rscript -e 'x <- 1; y'",
    "python pkg",
    "python src/deep",
    "env A=1 python train.py",
    "nohup ./ready.sh",
    "numactl --cpunodebind=0 python -m pkg.data",
    "time trainer --fast",
    "bash dos-echo.sh",
    "bash dos.sh",
    "dos.py",
    "declared.py",
    "japanese.py",
    "russian.py",
    f"train.py --config {'x' * 300}",
    f"bash -c 'python train.py {'--x ' * 2000}'",
    "pkg",
    "set",
    "conda run -n tf python train.py",
    "conda run --cwd /srv python nothing.py",
    "uv run --directory below nothing.py",
    "uv sync",
]


@pytest.mark.parametrize("line", [line for line in GOOD if "|" not in line or "bash" in line])
def test_nothing_is_said_of_what_may_be_right(project: Path, line: str) -> None:
    lint.check(tuple(shlex.split(line)), look(project))


def test_a_compiled_program_that_lost_its_mode(project: Path) -> None:
    with pytest.raises(UsageError) as caught:
        lint.check(("./copied", "a b"), look(project))
    assert caught.value.why == "it is not executable"
    assert caught.value.hint == "`chmod +x copied`, then `orchestrate launch -- ./copied 'a b'`"


def test_a_setup_may_make_the_program(project: Path) -> None:
    """`setup = "make"`."""
    lint.check(("./build/train",), replace(look(project), prepared=True))


def test_an_ignored_script_that_git_knows_is_sent(project: Path) -> None:
    subprocess.run(["git", "-C", str(project), "add", "-f", "secret.py"], check=True)
    try:
        lint.check(("secret.py",), look(project))
    finally:
        subprocess.run(["git", "-C", str(project), "rm", "-q", "--cached", "secret.py"], check=True)


def test_the_modules_beside_a_program_are_found(project: Path) -> None:
    known = look(project)
    names = ("train.py", "lib.py", "pkg/__init__.py", "pkg/data.py")
    assert list(sources.closure("train.py", known.read)) == [(name, FILES[name]) for name in names]
    assert program.read(("python", "-m", "pkg.data"), known)[0].text == FILES["pkg/data.py"]
    assert program.read(("bash", "run.sh"), known) == ()


@pytest.mark.parametrize(
    "line",
    [
        "bash -c 'cd . && python -u train.py --x | tee log'",
        "bash -o pipefail -c 'exec python3.11 train.py'",
        "bash start.sh",
        "bash continued.sh",
        "bash -c '${PYTHON:-python3} train.py'",
        'bash -c \'python "train.py" "$@"\'',
        "./start.sh 3",
        "nice -n 5 python train.py",
        "conda run -n tf python train.py",
        "poetry run python -u train.py",
        "uv run train.py --epochs 3",
        "env A=1 ./start.sh",
    ],
)
def test_a_program_that_a_shell_runs_is_read_as_well(project: Path, line: str) -> None:
    """What it imports decides which Keras it gets, however it is started."""
    known = look(project)
    texts = {"start.sh": "#!/bin/bash\n# python old.py\nset -e\npython train.py --epochs $1\n", **FILES}
    texts["continued.sh"] = "python3 \\\n  -u \\\n  train.py \\\n  --epochs 3\n"
    known = replace(known, read=texts.get)
    found = [source.path for source in program.read(tuple(shlex.split(line)), known)]
    assert found == ["train.py", "lib.py", "pkg/__init__.py", "pkg/data.py"]


def test_what_a_shell_only_mentions_is_not_read(project: Path) -> None:
    for line in ("bash -c 'echo train.py'", "bash -c 'mypython train.py'", "bash", "bash -c", "./nothing.sh"):
        assert program.read(tuple(shlex.split(line)), look(project)) == ()


@pytest.mark.parametrize("option", ["--ephocs=3", "--strategy=mirror", "--batch-size=x"])
def test_options_of_worker_entry_are_judged_here(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program.check_options((option,))
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_dry_run_says_it_too(project: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text('[[host]]\nname = "gpu-1"\n')
    words = ["launch", "--hosts", str(tmp_path / "hosts.toml"), "--dry-run", "--", "train.ipynb"]
    done = subprocess.run(
        [Path(sys.executable).with_name("orchestrate"), *words],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: train.ipynb is a notebook")
    assert done.stdout == ""
