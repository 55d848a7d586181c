"""Safe printing of any text; gpu-[01-08] and back; text for shells and parsers."""

import json
import os
import re
import shlex
import subprocess
import tomllib
import unicodedata

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator import ranges
from orchestrator.errors import worded
from orchestrator.export import kubernetes, slurm
from orchestrator.model import Job, Kubernetes
from orchestrator.quoting import command_line, shown, toml
from orchestrator.text import duration, endpoint, harmless, json_of, json_safe, plain, size
from tests.unit import plans
from tests.unit.plans import host

# Output of a task, and the printed text with and without colors.
SEQUENCES = [
    ("größer ━━━ 漢字 👩‍👩‍👧", "größer ━━━ 漢字 👩‍👩‍👧", "größer ━━━ 漢字 👩‍👩‍👧"),
    ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m", "red"),
    ("\x1b[2J\x1b[Hcleared", "cleared", "cleared"),
    ("\x1b[>4;2mkeys", "keys", "keys"),  # ends like a color code, but is not one
    ("\x1b]0;title\x07text", "text", "text"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link", "link"),
    ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\x", "x", "x"),
    ("\x9b2Jc1\x9d0;t\x9c.", "c1.", "c1."),
    ("lone\x1b", "lone␛", "lone␛"),
    ("\x1b\x1b[2J[2J", "␛[2J", "␛[2J"),
    ("open \x1b]0;never closed", "open 0;never closed", "open 0;never closed"),
    ("\x1b[" + "1" * 65 + "mx", "x", "x"),  # int() may reject it
    ("nul\0bel\x07bs\x08del\x7f", "nul␀bel␇bs␈del␡", "nul␀bel␇bs␈del␡"),
    ("\x0b\x0c\x1c\x85\u2028\u2029", "␋␌␜\\u0085\\u2028\\u2029", "␋␌␜\\u0085\\u2028\\u2029"),
    ("pay \u202eevil", "pay \\u202eevil", "pay \\u202eevil"),
    ("a\nb\r", "a␊b␍", "a␊b␍"),
    ("\ud800", "\\ud800", "\\ud800"),
]


@pytest.mark.parametrize(("raw", "coloured", "bare"), SEQUENCES)
def test_task_output_cannot_move_the_cursor(raw: str, coloured: str, bare: str) -> None:
    assert harmless(raw) == coloured
    assert plain(raw) == bare


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-0.1, "0.0 s"), (0.25, "0.2 s"), (9.94, "9.9 s"), (9.96, "10 s"), (41, "41 s"), (99.4, "99 s"),
        (99.6, "1 min 40 s"), (3599.7, "1 h 00 min"), (7620, "2 h 07 min"), (273_600, "3 d 04 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 B"), (812, "812 B"), (1500, "1.5 kB"), (999_600, "1.0 MB"), (120e9, "120 GB"), (5e12, "5.0 TB")],
)
def test_sizes(number: float, words: str) -> None:
    assert size(number) == words


# Invisible characters are kept where a script or an emoji needs them, and made visible elsewhere.
INVISIBLE = [
    ("\u2764\ufe0f ok", None),
    ("\U0001f468\u200d\U0001f469\u200d\U0001f467", None),
    ("\U0001f3f3\ufe0f\u200d\U0001f308", None),
    ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", None),  # Persian, with a non-joiner
    ("\u0915\u094d\u200d\u0937", None),  # Devanagari, with a joiner
    ("\u845b\U000e0100", None),  # an ideograph's variant
    ("lo\u200dss", "lo\\u200dss"),
    ("ad\u200bmin", "ad\\u200bmin"),
    ("x\U000e0041\U000e0042", "x\\U000e0041\\U000e0042"),
    ("\u2603\ufe0f\ufe0f\ufe0f", "\u2603\ufe0f\\ufe0f\\ufe0f"),
]


@pytest.mark.parametrize(("raw", "shown"), INVISIBLE)
def test_invisible_characters_hide_nothing(raw: str, shown: str | None) -> None:
    assert harmless(raw) == plain(raw) == (shown or raw)


@given(st.text(st.characters(exclude_categories=[])))
def test_json_is_equivalent_and_printable(text: str) -> None:
    line = json_safe(json_of({"a": text}))
    assert json.loads(line) == {"a": text.encode("utf-8", "backslashreplace").decode()}
    assert harmless(line.decode()).count("\\u") == line.decode().count("\\u")
    assert not any(unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"} for letter in line.decode())


def test_ipv6_endpoints_with_a_port_have_brackets() -> None:
    assert endpoint("gpu-1", 22) == "gpu-1:22"
    assert endpoint("fd00::1", 22) == "[fd00::1]:22"
    assert endpoint("fd00::1", None) == "fd00::1"
    assert endpoint("gpu-1", "") == "gpu-1"


# --- gpu-[01-08] and back ---


def test_ranges_are_expanded() -> None:
    assert ranges.expand("gpu-[1-3]") == ("gpu-1", "gpu-2", "gpu-3")
    assert ranges.expand("gpu-[08-11]") == ("gpu-08", "gpu-09", "gpu-10", "gpu-11")
    assert ranges.expand("gpu-[1,3,5-7]") == ("gpu-1", "gpu-3", "gpu-5", "gpu-6", "gpu-7")
    assert ranges.expand("r[1-2]-n[1-2].lab") == ("r1-n1.lab", "r1-n2.lab", "r2-n1.lab", "r2-n2.lab")
    assert ranges.expand("[fe80::1]:22") == ("[fe80::1]:22",)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("g[a]", "[a] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[10-08]", "[10-08] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[4-01]", "[4-01] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[08-100]", "[08-100] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[1-5000]", "[1-5000] stands for more than 4096 hosts"),
        ("g[1-2", 'has brackets that do not match: "g[1-2"'),
    ],
)
def test_invalid_ranges_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        ranges.expand(pattern)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ("", ""),
        ("gpu-10 gpu-9 gpu-8", "gpu-[8-10]"),
        ("gpu-08 gpu-09 gpu-10 gpu-12", "gpu-[08-10,12]"),
        ("gpu-99 gpu-100 gpu-101", "gpu-[99-101]"),
        ("login gpu-2 gpu-1 nas", "gpu-[1-2],login,nas"),
        ("r1-n1 r1-n2 r2-n1", "r1-n[1-2],r2-n1"),
        ("gpu-1 gpu-01", "gpu-[1,01]"),
    ],
)
def test_names_are_folded_into_ranges(names: str, folded: str) -> None:
    assert ranges.fold(names.split()) == folded
    assert set(ranges.expand_all(folded)) == set(names.split())


# --- text for shells and parsers, checked by the real ones ---

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
    """Return the arguments of a script's last command, a function that prints them."""
    show = "show() { printf '%s\\0' \"$@\"; }; "
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["bash", "-c", show + script], env=env, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@FEW
@given(WORDS)
@example(NASTY)
def test_a_shell_parses_the_quoted_words_back(argv: list[str]) -> None:
    assert shlex.split(command_line(["x", *argv])) == ["x", *argv]
    assert bash(command_line(["show", *argv])) == argv
    line = " ".join(map(shown, argv))
    assert line.isprintable()
    assert bash(f"show {line}") == argv


@given(TEXT)
@example("".join(NASTY))
def test_a_toml_parser_parses_the_value_back(text: str) -> None:
    line = toml(text)
    assert "\n" not in line
    assert tomllib.loads(f"key = {line}") == {"key": text}


@FEW
@given(WORDS)
@example(NASTY)
def test_a_plain_batch_file_passes_the_words_on(argv: list[str]) -> None:
    plan = plans.make(
        host("a"), host("b"), command=("python3", *argv), job=Job(env={"VALUE": argv[0] or "x"})
    )
    text = slurm.plain_batch(plan, "/", [])
    script = text.replace("exec srun", 'show "$VALUE"', 1)
    value, *words = bash(script)
    assert value == (argv[0] or "x")
    assert words[words.index("--") + 1 :][-len(argv) :] == argv


def expanded(word: str) -> str:
    """Return an argument as Kubernetes passes it if no variable has the name (syntax: $(NAME), $$)."""
    return re.sub(r"\$(\$|\([^)]*\))?", lambda found: "$" if found[1] == "$" else found[0], word)


@FEW
@given(WORDS)
@example(NASTY)
def test_a_manifest_passes_on_words_and_files(argv: list[str]) -> None:
    plan = plans.make(
        host("a"), host("b"), command=("python3", *argv), job=Job(env={"VALUE": argv[0] or "x"})
    )
    code = {"t.py": "\n".join(argv).encode()}
    made = kubernetes.manifests(plan, Kubernetes("image"), code, "")
    config_map, *_, last = yaml.safe_load_all(kubernetes.text(made, plan, []))
    assert config_map["data"]["t.py"] == "\n".join(argv)
    container = last["spec"]["template"]["spec"]["containers"][0]
    assert list(map(expanded, container["args"]))[-len(argv) :] == argv
    assert "$(" not in "".join(container["args"]).replace("$$", "")
    (value,) = (one["value"] for one in container["env"] if one["name"] == "VALUE")
    assert expanded(value) == (argv[0] or "x")


def test_tildes_are_quoted_where_needed() -> None:
    assert command_line(["~/bin/python", "~/x"]) == "~/bin/python '~/x'"
    assert command_line(["~/my env/bin/python"]) == "~/'my env/bin/python'"
    assert command_line(["~other/x"]) == "'~other/x'"


def test_only_a_missing_folder_is_said_to_have_been_removed() -> None:
    assert "removed" in worded(FileNotFoundError(2, "gone")).hint
    assert "removed" not in worded(OSError(28, "full")).hint
    assert "removed" not in worded(PermissionError(13, "no", "x")).hint
