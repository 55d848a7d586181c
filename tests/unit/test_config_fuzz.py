"""Whatever hosts.toml holds, the outcome is an inventory or one error a terminal can show."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import config
from orchestrator.config.tables import HOST_KEYS, JOB_KEYS
from orchestrator.errors import UsageError
from orchestrator.model import Inventory
from orchestrator.planning import explain
from tests.unit import plans

RIGHT = """\ufeff[defaults]
python = '~/venv/bin/python'
devices = [0, 1]
env = { A = "b" }
[[host]]
name = "gpu-[01-08]"
address = "10.0.0.[1-8]"  # eight of them
[[host]]
ssh = "train@[fd00::5]:2200"
[host.env]
TERM = "dumb"
[job]
setup = \"\"\"
module load cuda
\"\"\"
secrets = ["TOKEN"]
grace = 1.5
"""

WORDS = r"""
[defaults] [[host]] [job] [host.env] name ssh address env.A TF_CONFIG = ' " ''' [ ] { } , # - . \ 0 1 -1 65536
1e999 nan true 1979-05-27 07:32:00 "gpu-[01-08]" "127.0.0.1" "[::1]:22" "::" "a@b:1" "local"
"ps" "chief" "\u0000"
"""
BLANKS = ["\n", "\r\n", "\r", " ", "\t", "\0", "\ufeff", "\x1b", "\u2028"]
pieces = st.sampled_from([*WORDS.split(), *BLANKS, "0x" + "f" * 4000])

quoted = st.text(st.characters(exclude_categories=["C"], exclude_characters="'"), max_size=12).map(
    "'{}'".format
)
values = st.recursive(
    st.sampled_from(["true", "false", "inf", "1979-05-27", '"\\u001b"', "[]", "{}"])
    | st.integers(-(10**20), 10**20).map(str)
    | st.floats().map(str)
    | quoted,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.tuples(st.sampled_from(["A", "TF_CONFIG", '"\\u001b"']), inner).map("{{{0[0]} = {0[1]}}}".format)
    ),
    max_leaves=4,
)
lines = st.one_of(
    st.sampled_from(["[defaults]", "[[host]]", "[job]", "[host.env]", '[[host]]\nname = "g[1-3]"']),
    st.tuples(st.sampled_from([*HOST_KEYS, *JOB_KEYS, '"\\u001b[2J"', "prot"]), values).map(" = ".join),
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    start = draw(st.integers(0, len(RIGHT)))
    end = start + draw(st.integers(0, 12))
    return RIGHT[:start] + draw(st.text(max_size=4) | pieces) + RIGHT[end:]


def outcome(text: str | bytes) -> Inventory | UsageError:
    try:
        return config.parse(text)
    except UsageError as error:
        return error


@settings(deadline=None, max_examples=100)
@given(
    st.text()
    | st.binary()
    | st.lists(pieces).map("".join)
    | st.lists(lines).map("\n".join)
    | damaged()
    | damaged().map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_any_text_is_an_inventory_or_a_usage_error(text: str | bytes) -> None:
    match outcome(text):
        case Inventory(hosts=hosts, job=job):
            environ = dict.fromkeys(job.forward, "x")
            plan = plans.make(*hosts, job=job, environ=environ)
            assert all(line.isprintable() for line in explain.dry_run(plan).split("\n"))
        case UsageError(why=why):
            assert why
            assert all(line.isprintable() for line in why.split("\n"))


def test_the_start_is_right() -> None:
    assert isinstance(outcome(RIGHT), Inventory)
