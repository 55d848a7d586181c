"""Real tasks that wait in a collective for one that sleeps: the sleeper is named."""

import json

from tests.ssh.runs.desk import Desk, until

LIMIT = 150.0  # seconds; three tasks share the available cores

SLEEPER = """
import json, os, time
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id


@tf.function
def mean(value):
    def of_replica(value):
        return value * 2

    return strategy.reduce("mean", strategy.run(of_replica, args=(value,)), axis=None)


def look_at_the_data(step):
    if (task, step) == (1, 3):
        time.sleep(600)


for step in range(1000):
    look_at_the_data(step)
    print("step", step, float(mean(tf.constant(1.0))), flush=True)
"""


def test_a_sleeping_task_that_blocks_a_collective_is_named(three: Desk) -> None:
    viewer = three.launch("--env", "TF_CPP_MIN_LOG_LEVEL=2", "--", three.script("t.py", SLEEPER))
    until("three steps are done", lambda: viewer.stdout.count("step 2 ") == 3, LIMIT)

    expected = (
        f"worker/1 on {three.cluster.hosts[1].name} differs from the others: at t.py:19 in look_at_the_data;"
        " worker/[0,2] wait for it at t.py:24 in <module>"
    )

    def found() -> bool:
        asked = three.start("stacks", "--json").ended()
        hang = json.loads(asked.stdout)["found"]
        print(hang)  # for reading a failure
        return bool(hang == expected)

    until("all have come to where they stay", found)
    three.start("stop", "--now").ended()
    viewer.wait()
    three.nothing_is_left(three.run_id())
