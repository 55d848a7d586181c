"""Text for shells and parsers: a real shell, the parsers of TOML and YAML, and Kubernetes' rule judge it."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.export import kubernetes, slurm
from orchestrator.model import Job, Kubernetes
from orchestrator.quoting import command_line, shown, toml
from tests.unit import plans
from tests.unit.plans import host

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
WORDS = st.lists(TEXT, min_size=1, max_size=4)
NASTY = [
    "$(touch x)",
    "`touch x`\n",
    "$$",
    "$$(HOME)",
    "a\xa0b",
    "\x85\u2028\u2029\ufeff\r",
    "it's \\ !",
    "",
    "~/x",
    "\x7f",
]
FEW = settings(max_examples=40, deadline=None)


def bash(script: str) -> list[str]:
    """The words that the last command of a script gets; it is a function that prints them."""
    show = "show() { printf '%s\\0' \"$@\"; }; "
    done = subprocess.run(["bash", "-c", show + script], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@FEW
@given(WORDS)
@example(NASTY)
def test_a_shell_reads_the_words_back(argv: list[str]) -> None:
    assert shlex.split(command_line(["x", *argv])) == ["x", *argv]
    assert bash(command_line(["show", *argv])) == argv
    line = " ".join(map(shown, argv))
    assert line.isprintable()
    assert bash(f"show {line}") == argv


@given(TEXT)
@example("".join(NASTY))
def test_a_toml_parser_reads_the_value_back(text: str) -> None:
    line = toml(text)
    assert "\n" not in line
    assert tomllib.loads(f"key = {line}") == {"key": text}


@FEW
@given(WORDS)
@example(NASTY)
def test_a_plain_batch_file_hands_on_the_words(argv: list[str]) -> None:
    plan = plans.make(
        host("a"), host("b"), command=("python3", *argv), job=Job(env={"VALUE": argv[0] or "x"})
    )
    text = slurm.plain_batch(plan, "/", [])
    script = text.replace("exec srun", 'show "$VALUE"', 1)
    value, *words = bash(script)
    assert value == (argv[0] or "x")
    assert words[words.index("--") + 1 :][-len(argv) :] == argv


def expanded(word: str) -> str:
    """A word as Kubernetes hands it on where no variable has the name (its syntax: $(NAME), $$)."""
    return re.sub(r"\$(\$|\([^)]*\))?", lambda found: "$" if found[1] == "$" else found[0], word)


@FEW
@given(WORDS)
@example(NASTY)
def test_a_manifest_hands_on_the_words_and_the_files(argv: list[str]) -> None:
    plan = plans.make(
        host("a"), host("b"), command=("python3", *argv), job=Job(env={"VALUE": argv[0] or "x"})
    )
    code = {"t.py": "\n".join(argv).encode()}
    made = kubernetes.manifests(plan, Kubernetes("image"), code, "", jobset=False)
    config_map, *_, last = yaml.safe_load_all(kubernetes.text(made, plan, []))
    assert config_map["data"]["t.py"] == "\n".join(argv)
    container = last["spec"]["template"]["spec"]["containers"][0]
    assert list(map(expanded, container["args"]))[-len(argv) :] == argv
    assert "$(" not in "".join(container["args"]).replace("$$", "")
    (value,) = (one["value"] for one in container["env"] if one["name"] == "VALUE")
    assert expanded(value) == (argv[0] or "x")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["~/bin/python", "~/x"], "~/bin/python '~/x'"),
        (["~/my env/bin/python"], "~/'my env/bin/python'"),
        (["~other/x"], "'~other/x'"),
    ],
)
def test_how_it_looks(argv: list[str], line: str) -> None:
    assert command_line(argv) == line
