"""Runs in jobs of a real Slurm: their start, and each way that Slurm ends them."""

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.rehearsal import Cluster
from tests.slurm.cluster import LIMIT, ROOT, Slurm
from tests.ssh.runs.desk import Desk, until
from tests.training import jax_python, short, torch_python, training_python

EXAMPLES = ROOT / "examples"
FAST = ("--skip-preflight", "--no-validate")
COUNT = """
import os, signal, sys, time
of_a_step = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP", "PMI")
print("I am", [name for name in os.environ if name.startswith(of_a_step)])
print("job", os.environ["SLURM_JOB_ID"], os.environ["SLURM_JOB_NODELIST"])

def save(*_):
    open("saved", "w").write("a checkpoint")
    sys.exit("saved")

signal.signal(signal.SIGTERM, save)
for step in range(int(sys.argv[1])):
    print("step", step, flush=True)
    time.sleep(0.2)
"""
# The second task's action in its second attempt, before the first one saves.
RAISE = r"""\1if (rank, __import__("os").environ["ORCHESTRATE_ATTEMPT"]) == (1, "2"):
\1    raise ValueError("record 17 has no label")
\g<0>"""


@pytest.fixture
def count(slurm: Slurm) -> str:
    """A program without dependencies that counts, and saves on TERM."""
    return slurm.script("count.py", COUNT)


def digests(text: str) -> set[str]:
    return set(re.findall(r"worker/\d: weights (\w{16})", text))


@pytest.mark.soak
def test_sbatch_trains_four_tasks_to_the_weights_of_a_run_over_ssh(slurm: Slurm, tmp_path: Path) -> None:
    with Cluster(4, python=training_python()) as cluster:
        desk = Desk(cluster, tmp_path / "desk")
        program = (desk.project / desk.example("fit.py")).read_text()
        over_ssh = desk.launch("--", desk.script("fit.py", short(program))).ended(limit=2 * LIMIT)
        desk.close()
    for name in ("fit.py", "digits.csv.gz"):
        (slurm.project / name).write_bytes((desk.project / name).read_bytes())
    slurm.script("hosts.toml", f'[defaults]\npython = "{training_python()}"\n')
    job = slurm.submit("-N4", *FAST, "--", "fit.py")
    trained = job.wait()
    assert len(re.findall(r"worker/\d n\d \| worker/\d: weights", trained)) == 4, trained
    assert len(digests(trained)) == 1
    assert digests(trained) == digests(over_ssh.stdout)


@pytest.mark.soak
def test_exported_batch_files_train_to_the_same_weights(slurm: Slurm) -> None:
    slurm.script("fit.py", short((EXAMPLES / "fit.py").read_text()))
    shutil.copy(EXAMPLES / "digits.csv.gz", slurm.project)
    hosts = f'[[host]]\nssh = "gpu-[1-4]"\n[defaults]\npython = "{training_python()}"\n'
    slurm.script("hosts.toml", hosts + '[job]\nvalidation = "never"\n')
    trained = []
    for name, options in (("job.sh", []), ("plain.sh", ["--plain"])):
        slurm.run("orchestrate", "export", "slurm", *options, "-o", name, "--", "fit.py")
        trained.append(slurm.batch(name).wait())
        assert trained[-1].count(": weights") == 4, trained[-1]
    assert len(digests("".join(trained))) == 1


@pytest.mark.soak
@pytest.mark.parametrize(
    ("example", "python"),
    [("torch_ddp.py", torch_python), ("jax_mnist.py", jax_python), ("keras_jax.py", jax_python)],
)
def test_an_example_survives_a_kill_and_an_exception_and_ends_with_equal_weights(
    slurm: Slurm, example: str, python: Callable[[], str]
) -> None:
    if not (found := python()):
        assert not os.environ.get("CI"), "a framework is missing: scripts/setup tests"
        pytest.skip("needs PyTorch and JAX: scripts/setup frameworks")
    shutil.copy(EXAMPLES / "digits.csv.gz", slurm.project)
    at_the_end_of_an_epoch = re.compile(r"^( +)if rank == 0:$", re.MULTILINE)
    slurm.script(example, at_the_end_of_an_epoch.sub(RAISE, (EXAMPLES / example).read_text()))
    slurm.script("hosts.toml", f'[defaults]\npython = "{found}"\n')
    job = slurm.submit("-N4", *FAST, "--max-restarts", "2", "--", example, "--epochs", "6")
    job.prints("poch 2")
    (program,) = (pid for pid, command in slurm.alive("ORCHESTRATE_RANK=2\0").items() if example in command)
    os.kill(program, signal.SIGKILL)
    ends = dict(re.findall(r"rank (\d) of 4: weights (\w{16})", job.wait(3 * LIMIT)))
    assert sorted(ends) == ["0", "1", "2", "3"], job.output
    assert len(set(ends.values())) == 1
    killed, raised = (one["cause"] for one in slurm.named("AttemptFailed"))
    assert killed.startswith("worker/2 on n3 was killed by SIGKILL")
    assert raised.startswith("worker/1 on n2 "), raised
    assert raised.endswith("ValueError: record 17 has no label")
    again = (slurm.runs()[-1] / "logs" / "3" / "worker-0.log").read_text()
    assert not re.search(r"[Ee]poch 1\b", again)


def test_tasks_do_not_inherit_the_step_and_the_login_node_sees_the_run(slurm: Slurm, count: str) -> None:
    job = slurm.submit("-N2 --ntasks-per-node=2", "--skip-preflight", "--no-validate", "--", count, "3")
    printed = job.wait()
    assert printed.count("| I am []\n") == 4, printed
    assert printed.count(f"| job {job.number} n[1-2]\n") == 4
    run = slurm.runs()[-1].name
    assert "succeeded" in slurm.run("orchestrate", "status", run)
    assert slurm.run("orchestrate", "tail", run, "-n", "all", "--no-follow").count("| step 2") == 4
    output = slurm.run("orchestrate", "exec", "--hosts", "slurm", "--", "true", status=ExitStatus.USAGE)
    assert "SLURM_JOB_ID is not set" in output


def test_gpus_of_the_job_are_divided_among_its_tasks(slurm: Slurm, count: str) -> None:
    words = ("orchestrate", "launch", "--dry-run", "--hosts", "slurm", "--", count, "1")
    printed = slurm.run("salloc", "-N2", "--ntasks-per-node=2", "--gres=gpu:2", *words)
    assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", printed) == ["0", "1", "0", "1"], printed


def test_preflight_measures_the_nodes_of_a_job(slurm: Slurm) -> None:
    slurm.script("hosts.toml", f'[defaults]\npython = "{training_python()}"\n')
    printed = slurm.run("salloc", "-N3", "orchestrate", "preflight", "--hosts", "slurm")
    assert "ready to train" in printed, printed


def test_the_verdict_names_scancel_and_nothing_remains(slurm: Slurm, count: str) -> None:
    job = slurm.submit("-N2", *FAST, "--", count, "900")
    job.prints("step 3")
    slurm.run("scancel", job.number)
    ended = slurm.ended()
    assert (ended["kind"], ended["unproven"]) == ("allocation", [])
    assert f"job {job.number} was cancelled (scancel)" in ended["cause"]
    assert (slurm.runs()[-1] / "logs").exists()
    job.wait()
    assert not slurm.alive()


@pytest.mark.parametrize(("left", "hosts"), [("--spares", ["n1", "n3"]), ("--min-hosts", ["n1", "n3"])])
def test_a_run_continues_on_the_remaining_nodes(
    slurm: Slurm, count: str, left: str, hosts: list[str]
) -> None:
    job = slurm.submit("-w n[1-3] --no-kill", *FAST, "--max-restarts", "1", left, "1", "--", count, "40")
    job.prints("step 3")
    slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=a fan is dead")
    ended = slurm.ended()
    assert (ended["outcome"], ended["attempts"]) == ("succeeded", 2), ended
    started = [(one["attempt"], one["host"]) for one in slurm.named("TaskStarted")]
    assert [host for attempt, host in started if attempt == 2] == hosts
    (failed,) = slurm.named("AttemptFailed")
    assert failed["kind"] == "allocation"
    assert "n2 is DOWN" in failed["cause"]


def test_the_signal_before_a_time_limit_stops_the_run_cleanly(slurm: Slurm, count: str) -> None:
    """As `--signal=B:USR1@60` sends it; scripts/soak-slurm waits for a real time limit."""
    job = slurm.submit("-N2 --time=10", *FAST, "--", count, "900")
    job.prints("step 3")
    slurm.run("scancel", "--batch", "--signal=USR1", job.number)
    ended = slurm.ended()
    assert ended["outcome"] == "stopped"
    assert f"before the time limit of Slurm job {job.number}" in ended["cause"]
    job.wait()
    slurm.run("orchestrate", "pull", "--to", "results")
    assert (slurm.project / "results" / "saved").exists()


def test_a_run_can_be_stopped_from_the_login_node(slurm: Slurm, count: str) -> None:
    job = slurm.submit("-N2", *FAST, "--", count, "900")
    job.prints("step 3")
    slurm.run("orchestrate", "stop")
    assert slurm.ended()["outcome"] == "stopped"
    job.wait()
    assert not slurm.alive()


def test_two_runs_in_one_allocation_outlive_their_terminals(slurm: Slurm, count: str) -> None:
    job = slurm.allocate("-N2")
    words = ("orchestrate", "launch", "--hosts", "slurm", *FAST, "--", count, "25")
    viewers = [slurm.session(*words, SLURM_JOB_ID=job.number) for _ in range(2)]
    until("both train", lambda: (slurm.folder / "out").read_text().count("step 1\n") == 4)
    for viewer in viewers:
        os.killpg(viewer.pid, signal.SIGHUP)
        viewer.wait()
    ports = set()
    for run in slurm.runs():
        output = slurm.run("orchestrate", "tail", run.name, "-n", "all")
        assert output.count("| step 24") == 2, output
        ports |= set(re.findall(r'"port": (\d+)', (run / "plan.json").read_text()))
    assert len(ports) == 2
    slurm.run("scancel", job.number)
