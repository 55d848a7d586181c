"""scripts/chaos: random faults against real runs on the container cluster."""

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.play import Result, play
from tests.chaos.rounds import KINDS, plan
from tests.cluster.machines import described

_NAMES = tuple(KINDS)


def main() -> int:
    arguments = _parser().parse_args()
    if os.geteuid() != 0:
        print("error: faults are made as root on the Docker host\n  try: sudo scripts/chaos", file=sys.stderr)
        return 3
    cluster = described(Path(os.environ["ORCHESTRATE_CLUSTER_DIR"]), os.environ["ORCHESTRATE_CLUSTER"])
    faults = tuple(arguments.fault) or _NAMES
    root = Path(tempfile.mkdtemp(prefix="orchestrate-chaos-"))
    results = []
    for seed in range(arguments.seed, arguments.seed + arguments.rounds):
        result = play(plan(seed, faults, arguments.tensorflow), cluster, root / str(seed))
        results.append(result)
        _tell(result, root)
    _table(results)
    failures = [result for result in results if result.wrong]
    if not failures:
        shutil.rmtree(root)
    chosen = "".join(f" --fault {name}" for name in arguments.fault)
    for result in failures:
        print(f"again: scripts/chaos --rounds 1 --seed {result.round.seed}{chosen}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=len(_NAMES), metavar="N", help="how many (each fault once)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the first round; the next ones count up"
    )
    parser.add_argument(
        "--fault", action="append", default=[], choices=_NAMES, help="only this one (again for more)"
    )
    parser.add_argument(
        "--tensorflow", type=int, default=6, metavar="N", help="where it fits, one round in N trains; 0: none"
    )
    return parser


def _tell(result: Result, root: Path) -> None:
    word = "FAILED" if result.wrong else "ok" if result.struck else "ok (missed)"
    print(
        f"{result.round.seed:6} {word:7} {result.seconds:5.1f} s  {result.round}  ->  {result.ended}",
        flush=True,
    )
    for line in result.wrong:
        print(f"         ! {line}", flush=True)
    if result.wrong:
        print(f"         run {result.run}, kept in {root / str(result.round.seed)}", flush=True)


def _table(results: list[Result]) -> None:
    rounds = Counter(result.round.fault for result in results)
    missed = Counter(result.round.fault for result in results if not result.struck)
    failed = Counter(result.round.fault for result in results if result.wrong)
    print(f"\n{'fault':16} {'rounds':>6} {'missed':>6} {'failed':>6} {'longest':>8}")
    for name in sorted(rounds, key=_NAMES.index):
        longest = max(result.seconds for result in results if result.round.fault == name)
        print(f"{name:16} {rounds[name]:6} {missed[name]:6} {failed[name]:6} {longest:6.1f} s")
    print(f"{'all':16} {len(results):6} {sum(missed.values()):6} {sum(failed.values()):6}")


if __name__ == "__main__":
    sys.exit(main())
