"""scripts/simulate: thousands of simulated histories of a run, each from one seed."""

import argparse
import logging
import multiprocessing
import sys
import time
from collections import Counter
from functools import partial

from tests.sim.faults import FAULTS
from tests.sim.world import History, play

_SHOWN = 3  # problems of one history


def main() -> int:
    arguments = _parser().parse_args()
    if not arguments.log:
        logging.disable(logging.CRITICAL)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    hits: Counter[str] = Counter()
    failed: list[int] = []
    began, virtual = time.monotonic(), 0.0
    with multiprocessing.Pool(arguments.jobs) as pool:
        histories = pool.imap(partial(play, only=tuple(arguments.fault)), seeds, 8)
        for seed, history in zip(seeds, histories, strict=True):
            hits.update(history.hits.keys())
            virtual += history.seconds
            if history.problems:
                failed.append(seed)
                found = "\n    ".join(history.problems[:_SHOWN])
                print(f"seed {seed}: {', '.join(history.armed)}\n    {found}", flush=True)
            if arguments.events:
                _print_events(history)
    seconds = time.monotonic() - began
    width = max(map(len, FAULTS))
    for name in FAULTS:
        print(f"{name:{width}}  {hits[name]:6}")
    per_hour = len(seeds) / seconds * 3600
    print(
        f"{len(seeds)} histories of {virtual / len(seeds):.0f} s in {seconds:.0f} s, {per_hour:.0f} an hour;"
        f" {sum(hits[name] > 0 for name in FAULTS)} of {len(FAULTS)} fault points; {len(failed)} failed"
    )
    for seed in failed[:20]:
        print(f"again: scripts/simulate --seeds 1 --first {seed} --events")
    return 1 if failed else 0


def _print_events(history: History) -> None:
    for keeper, at, stamped in history.events:
        print(f"  {at:10.3f}  keeper {keeper}  {stamped.event}")
    print(f"  digest {history.digest}, struck: {dict(history.hits)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many histories")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the next ones count up")
    parser.add_argument("--fault", action="append", default=[], choices=FAULTS, help="only this one")
    parser.add_argument("--events", action="store_true", help="print the events of the keeper")
    parser.add_argument("--log", action="store_true", help="and what it logged")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
