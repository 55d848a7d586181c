"""The output shown in README and the pages matches what the commands print.

A screen is a command after `$` and its output, or a block that begins with an error, a warning or a note.
Its lines must be printed in this order; run IDs, hosts, paths, digests, sizes and times may differ, and `...`
stands for anything. `ELSEWHERE` gives the reason for each screen that this machine cannot print.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import verbs
from tests.folders import remove
from tests.local.here import inventory
from tests.polling import poll

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BEGINS = re.compile(r"\$ orchestrate |(?:error|warning|note): ")


@dataclass(frozen=True)
class Screen:
    """One command and its output; without a command if the page shows only output."""

    name: str  # the page, and the first line
    output: list[str]


def screens() -> Iterator[Screen]:
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            output: list[str] | None = None
            for line in block:
                if BEGINS.match(line) and (line.startswith("$") or output is None):
                    output = [] if line.startswith("$") else [line]
                    yield Screen(f"{page.name}: {line.removeprefix('$ orchestrate ')}", output)
                elif output is not None:
                    output.append(line)


def blocks(text: str) -> Iterator[list[str]]:
    """Yield the fenced and indented blocks of a page without their indentation."""
    fenced = r"(?ms)^( *)```[^\n]*\n(.*?)^\1```$"
    found = [match[2] for match in re.finditer(fenced, text)]
    found += re.findall(r"(?m)(?:^ {4}.*\n|^\n(?= {4}))+", re.sub(fenced, "", text))
    for block in found:
        yield textwrap.dedent(block).splitlines()


def shape(line: str) -> str:
    """Return a line without parts that differ between runs or machines."""
    for pattern, name in (
        (r"\x1b\[[\d;]*m", ""),
        (r"\d{8}-\d{6}-\w{4}", "RUN"),
        (r"(?<![\w/])[~/][\w.-]*(?:/[\w.*-]+)+", "PATH"),
        (r"\b[0-9a-f]{12,}\b", "DIGEST"),
        (r"\bgpu-(?:\[[^\]]*\]|\d+)", "HOST"),
        (r"[\w.-]+@[\w.-]+", "USER"),
        (r"\b\d+(?:[.,:-]\d+)*", "N"),
        (r"\bN (?:min N s|[mh]|ms|s|B|kB|MB|GB)\b", "N"),
        (r"\s+", " "),
    ):
        line = re.sub(pattern, name, line)
    return line.strip()


SCREENS = {screen.name: screen for screen in screens()}

_TENSORFLOW = "needs TensorFlow on every host; tests/tf trains"
_SERVERS = "needs SSH servers; tests/ssh calls it"
_PEERS = "hosts send to each other; tests/ssh calls it"
ELSEWHERE = {
    "containers.md: error: b: its container ended (killed, out of memory, or its engine was restarted), and "
    "worker/1 is lost with it": "needs Docker; tests/cluster/test_containers.py has it",
    "container-cluster.md: preflight --hosts .cluster/hosts.toml": "needs the containers of tests/cluster",
    "clean.md: clean": "needs runs of a month ago; tests/golden/render has its rows",
    "data.md: push": _PEERS,
    "hangs.md: stacks": _TENSORFLOW,
    "hangs.md: error: no output for 10 min 00 s: worker/1 on gpu-02 is stopped (SIGSTOP); "
    "worker/[0,2] wait for it at train.py:25 in train": _TENSORFLOW,
    "hangs.md: error: worker/1 on gpu-02 raised RuntimeError: no data, and thread feed kept it from ending": (
        "tests/ssh/runs/test_hangs.py has it"
    ),
    "launch.md: launch --name night -- train.py --epochs 10": _TENSORFLOW,
    "lint.md: note: O203 train.py, line 7: /home/me/data/train.csv exists where you launched, "
    "but not on gpu-[01-04]; add it to [data]: tasks find it as $ORCHESTRATE_DATA/train.csv "
    "(docs/lint.md#o203)": ("needs a host with another disk"),
    "init.md: init 'gpu-[01-03]'": _SERVERS,
    "preflight.md: preflight": _TENSORFLOW,
    "preflight.md: error: gpu-02: port: 2222 taken": "needs a process of another user",
    "preflight.md: error: h2: packets: large packets from h[1,3-4] are lost": "needs an MTU hole",
    "rehearse.md: rehearse -n 2 --no-validate -- hostname": _SERVERS,
    "restarts.md: note: node6 may still run old tasks: the new ones listen on port 2223": "needs a lost host",
    "runs.md: status --machines": "needs another user, and GPUs; tests/golden/render has its rows",
    "setup.md: setup": "installs TensorFlow",
    "tensorboard.md: tensorboard": "needs TensorBoard",
    "training.md: error: gpu-[01-04] cannot train: the data set mnist is not on this machine": _TENSORFLOW,
    "tutorial.md: init 'gpu-[01-04]'": _SERVERS,
    "tutorial.md: setup": "installs TensorFlow",
    "tutorial.md: preflight": _TENSORFLOW,
    "tutorial.md: launch --name digits -- train.py": _TENSORFLOW,
    "tutorial.md: error: all 4 tasks exited with 1 after 26 s: RuntimeError: "
    "Collective ops must be configured at program startup": _TENSORFLOW,
    "tutorial.md: pull digits": _TENSORFLOW,
    "tutorial.md: clean": "has two columns fewer, which the page says",
}

PROGRAMS = {
    "train.py": """
        import json, os, sys
        with open(os.environ["ORCHESTRATE_REPORT"], "a") as file:
            file.write(json.dumps({"kind": "progress", "step": 7, "loss": 0.2413}) + "\\n")
        try:
            {}["labels" if "1e-3" in sys.argv else "images"]
        except KeyError:
            if "1e-3" not in sys.argv: raise Exception("record 17 has no images")
        """,
    "fit.py": """
        import time
        print("Epoch 3/100")
        print("1/20 [>....] - 2s 105ms/step - loss: 0.3279", flush=True)
        time.sleep(600)
        """,
    "killed.py": """
        import os, time
        for epoch in (28, 29, 30):
            print(f"Epoch {epoch}, Loss: 0.0446, Accuracy: 0.9896, Test Loss: 0.0703, Test Accuracy: 0.9806")
        if os.environ["ORCHESTRATE_ATTEMPT"] == "1":
            if os.environ["ORCHESTRATE_RANK"] == os.environ["DIES"]:
                os.kill(os.getpid(), 9)
            time.sleep(600)
        """,
    "batch.py": """
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        data = tf.data.Dataset.from_tensor_slices(images).batch(50)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.fit(data)
        """,
}
FAST = ("--skip-preflight", "--no-validate")


def play(folder: Path, hosts: str) -> Iterator[tuple[str, verbs.Called]]:
    """Run the commands of the pages on four hosts that are this machine, with three runs and mistakes."""

    def call(*words: str, state: str = "state") -> verbs.Called:
        return verbs.call(words, project, folder / state)

    def launch(*words: str) -> verbs.Called:
        return call("launch", *FAST, *words)

    project = folder / "project"
    project.mkdir()
    inventory_file = project / "hosts.toml"
    for name, text in PROGRAMS.items():
        (project / name).write_text(textwrap.dedent(text).lstrip("\n"))

    page = (ROOT / "docs" / "inventory.md").read_text(encoding="utf-8")
    inventory_file.write_text(page.split("This file\n\n```toml\n")[1].split("```")[0])
    yield "inventory.md: error: hosts.toml has 6 mistakes", launch("--dry-run", "--", "train.py")
    inventory_file.write_text('[data]\npaths = ["/home/vera/imagesx"]\n' + hosts)
    yield "data.md: error: [data] names /home/vera/imagesx, which does not exist", call("push")
    inventory_file.write_text(hosts)

    for name in ("exec -- nproc", "exec --only 'gpu-[01-03]' -- sh -c 'echo a; echo b; exit 3'"):
        yield f"exec.md: {name}", call(*shlex.split(name))
    yield (
        "exec.md: error: --exclude names gpu-09, which is not a host of the inventory",
        call("exec", "--exclude", "gpu-09", "--", "true"),
    )
    yield (
        "launch.md: launch -- 'python train.py | tee log'",
        call("launch", "--", "python train.py | tee log"),
    )
    (project / "train.py").rename(project / "good.py")
    (project / "batch.py").rename(project / "train.py")
    yield "lint.md: launch --dry-run -- train.py", call("launch", "--dry-run", "--", "train.py")
    (project / "good.py").rename(project / "train.py")
    yield (
        "lint.md: error: gpu-02 has no program trainer",
        launch("--only", "gpu-02", "--", "trainer", "--fast"),
    )

    launch("--only", "gpu-[01-02]", "--name", "monday", "--", "train.py", "--rate", "1e-3")
    with (project / "train.py").open("a") as program:
        program.write("# edited\n")
    yield (
        "events.md: error: both tasks exited with 1 after 0.2 s: Exception: record 17 has no images",
        launch("--only", "gpu-[01-02]", "--name", "night", "--", "train.py", "--rate", "1e-1"),
    )
    yield "runs.md: runs -n 2", call("runs", "-n", "2")
    yield "runs.md: runs --diff monday night", call("runs", "--diff", "monday", "night")
    yield (
        "README.md: error: worker/2 on gpu-03 was killed by SIGKILL after 68 s",
        launch("--env", "DIES=2", "--", "killed.py"),
    )
    yield (
        "restarts.md: warning: attempt 1 failed: worker/1 on gpu-02 was killed by SIGKILL after 41 s",
        launch("--max-restarts", "3", "--env", "DIES=1", "--", "killed.py"),
    )

    launch("--only", "gpu-[01-02]", "--detach", "--name", "night", "--", "fit.py")
    poll(lambda: "CPU" in call("status").out, verbs.LIMIT)  # it is measured every 5 s
    yield "runs.md: status", call("status")
    yield (
        "launch.md: error: gpu-01 already uses task port 2222 for run 20261121-021927-9g92 (ada@laptop)",
        launch("--only", "gpu-01", "--", "train.py"),
    )
    other = re.sub(r'(?s)(name = "gpu-02".*?)127\.0\.0\.1', r"\g<1>10.0.0.12", hosts)
    inventory_file.write_text(other)
    yield "runs.md: tail night", call("tail", "night", "--no-follow", state="elsewhere")
    inventory_file.write_text(hosts)
    call("stop", "night")
    yield "runs.md: status night", call("status", "night")

    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    inventory_file.write_text(re.sub(r"workdir = .*", f'workdir = "{shared}"', hosts))
    yield (
        "security.md: error: gpu-01 reports: will not run code from /shared/train",
        launch("--only", "gpu-01", "--", "train.py"),
    )


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("outputs")
    with inventory(folder, *(f"gpu-0{number}" for number in range(1, 5))) as hosts:
        yield {
            name: f"{called.out}{called.err}status {called.status}\n" for name, called in play(folder, hosts)
        }
    remove(folder)


def test_every_shown_output_is_reproduced_or_has_a_reason_not_to_be(printed: dict[str, str]) -> None:
    assert sorted(SCREENS) == sorted({*printed, *ELSEWHERE})
    assert not printed.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("name", sorted(SCREENS.keys() - ELSEWHERE.keys()))
def test_the_output_shown_on_a_page_is_printed(name: str, printed: dict[str, str]) -> None:
    """Each shown line must be printed, after the previous one."""
    left = iter(map(shape, printed[name].splitlines()))
    for line in map(shape, SCREENS[name].output):
        if line not in ("", "..."):
            assert line in left, f"{line}\nof\n{printed[name]}"
