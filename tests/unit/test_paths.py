"""Which arguments of a command are paths that only this machine has."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import findings
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.launching import code, program
from orchestrator.model import Host, Inventory, RunPlan
from orchestrator.planning import plan
from orchestrator.program import paths
from orchestrator.program.project import Code


@pytest.fixture
def around(tmp_path: Path) -> Code:
    for name in ("train.py", "data/a.csv", "conf/lr.json", "runs/1", "elsewhere/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".orchestrateignore").write_text("data/\nruns/\nelsewhere/\n")
    inventory = Inventory((Host("gpu-1", "gpu-1", "gpu-1"),))
    return program.look(inventory, code.project(inventory, None, tmp_path), (), tmp_path)


@pytest.mark.parametrize(
    ("line", "own", "unsent"),
    [
        ("train.py --data HERE/data", ["HERE/data"], []),
        ("train.py --data=HERE/data HERE/conf", ["HERE/data", "HERE/conf"], []),
        ("HERE/train.py", ["HERE/train.py"], []),
        ("--data-dir HERE/data", ["HERE/data"], []),
        ("train.py --data HERE/nothing --out /dev/null", [], []),
        ("train.py --log-dir HERE/data --model_dir=HERE/conf HERE/runs", [], []),
        ("train.py --data data", [], ["data"]),
        ("train.py --data=./data/a.csv", [], ["./data/a.csv"]),
        ("train.py data/ elsewhere", [], ["data/"]),
        ("train.py --conf conf/lr.json --conf conf train.py", [], []),
        ("train.py --data nothing --out runs --save data/x", [], []),
        (
            "train.py data.dir=HERE/data +conf.x=data/a.csv data=data log.dir=HERE/conf",
            ["HERE/data"],
            ["data/a.csv"],
        ),
        (f"train.py --note {'x' * 300} --path /{'y' * 300}", [], []),
        ("train.py --lr 0.1 -v . ..", [], []),
    ],
)
def test_what_only_this_machine_has(
    line: str, own: list[str], unsent: list[str], around: Code, tmp_path: Path
) -> None:
    def here(text: str) -> str:
        return text.replace("HERE", str(tmp_path))

    command = tuple(shlex.split(here(line)))
    assert list(paths.own(command, around)) == [here(one) for one in own]
    assert list(paths.unsent(command, around)) == unsent


def test_a_link_that_leads_out_of_what_is_sent(tmp_path: Path) -> None:
    """Hosts get the link, which leads nowhere there; one to what is sent is as good as that."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.csv").write_text("")
    project = tmp_path / "project"
    (project / "conf").mkdir(parents=True)
    (project / "conf" / "lr.json").write_text("")
    (project / "train.py").write_text("")
    (project / "data").symlink_to(tmp_path / "far")
    (project / "near").symlink_to("conf")
    inventory = Inventory((Host("gpu-1", "gpu-1", "gpu-1"),))
    around = program.look(inventory, code.project(inventory, None, project), (), project)
    command = ("train.py", "--data", "data", "--csv", "data/a.csv", "--conf", "near", "--lr", "near/lr.json")
    assert paths.unsent(command, around) == ("data", "data/a.csv")


def test_a_home_that_no_shell_has_read(around: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ("train.py", "--data", "~/data", "--more=~/conf", "--out", "~/elsewhere", "~/nothing", "~")
    assert paths.own(command, around) == ("~/data", "~/conf")
    assert paths.unsent(command, around) == ()


def test_where_the_hosts_see_the_same_files_nothing_is_said(around: Code, tmp_path: Path) -> None:
    everywhere = replace(around, everywhere=lambda path: path == str(tmp_path / "data"))
    assert paths.own(("train.py", str(tmp_path / "data")), everywhere) == ()


def planned() -> RunPlan:
    return plan.assign(
        Inventory((Host("gpu-1", "gpu-1", "gpu-1"),)),
        command=("train.py",),
        env={},
        name="",
        run="r",
        owner="o",
        created=0.0,
        environ={},
        sources=(),
    )


def test_a_path_that_is_not_sent_is_a_finding() -> None:
    scene = findings.Scene(planned(), (), lambda _: None, unsent=("./sets/images",))
    (found,) = findings.find(scene)
    assert found.code == "O203"
    assert "$ORCHESTRATE_DATA/images" in found.fix
    assert findings.find(scene, ("O203",)) == ()


def test_a_path_in_the_program_that_is_not_sent_is_a_finding(around: Code, tmp_path: Path) -> None:
    (tmp_path.parent / "above.csv").write_text("")
    text = (
        "x = read('conf/lr.json')\n"
        "x = read('data/a.csv')\n"
        "x = glob('./elsewhere/*')\n"
        "x = read('data')  # orchestrate: ignore[O203]\n"
        "x = read('../above.csv')\n"
        "x = read('nothing/a.csv')\n"
    )
    source = SourceFile("train.py", text)
    readings = program.readings(("train.py",), around, (source,), ())
    scene = findings.Scene(planned(), (source,), around.read, around.sent, readings=readings)
    found = findings.find(scene)
    assert {(one.code, one.path) for one in found} == {("O203", "train.py")}
    left_out = "is not on the hosts: git, .orchestrateignore or `ignore` leaves it out"
    assert [(one.line, one.what) for one in found] == [
        (2, f"data/a.csv {left_out}"),
        (3, f"./elsewhere {left_out}"),
        (5, "../above.csv is not on the hosts: it lies outside of the folder that is sent"),
    ]
    assert found[0].fix == "name it in [data], and read it there: $ORCHESTRATE_DATA/a.csv"


def test_what_a_file_is_is_not_waited_for(around: Code, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train")
    (tmp_path / "compiled").write_bytes(b"\x7fELF\0" * 9000)
    assert around.head("train") == around.head("nothing") == b""
    assert around.head("compiled").startswith(b"\x7fELF")
