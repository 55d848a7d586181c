"""A sweep over learning rates: one trial at a time on each machine or group of machines; a table and a page.

python examples/sweep.py gpu-01 gpu-02 gpu-03 gpu-04 -- train.py --learning-rate
python examples/sweep.py 'gpu-[01-02]' 'gpu-[03-04]' -- train.py --learning-rate

Run it where you would run `orchestrate launch`. The second command trains each trial on two machines.
"""

import queue
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import orchestrator

RATES = [round(1e-4 * 1.5**number, 5) for number in range(20)]


class Trial(NamedTuple):
    rate: float
    hosts: str
    outcome: str
    loss: float
    run: orchestrator.RunHandle | None


def train(command: list[str], rate: float, hosts: str) -> Trial:
    try:
        words = [*command[:-1], f"{command[-1]}={rate}"]
        run = orchestrator.launch(words, only=hosts, name=f"rate {rate}", wait=True)  # others may use them
        outcome = run.wait().outcome
        return Trial(rate, hosts, outcome, run.metrics().get("loss", float("inf")), run)
    except orchestrator.OrchestrateError as error:  # the other trials continue
        return Trial(rate, hosts, error.what, float("inf"), None)


def main(groups: list[str], command: list[str]) -> None:
    free = queue.SimpleQueue[str]()
    for group in groups:
        free.put(group)

    def trial(rate: float) -> Trial:
        hosts = free.get()
        try:
            return train(command, rate, hosts)
        finally:
            free.put(hosts)

    with ThreadPoolExecutor(len(groups)) as pool:
        trials = sorted(pool.map(trial, RATES), key=lambda trial: trial.loss)
    print(f"{'rate':<10}{'loss':<12}{'hosts':<16}outcome")
    for one in trials:
        print(f"{one.rate:<10}{one.loss:<12.4g}{one.hosts:<16}{one.outcome}")
    best, *others = [one.run for one in trials if one.run is not None]
    print(best.report("sweep.html", others=others))


if __name__ == "__main__":
    split = sys.argv.index("--")
    main(sys.argv[1:split], sys.argv[split + 1 :])
