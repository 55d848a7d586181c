"""`python -m worker_entry.prepare mnist --data-dir DIR --files 4`: prepare a data set once, to be copied.

The set is tensorflow-datasets' own, fetched and written by its own code; then it needs no network any more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from worker_entry import environment
from worker_entry.arguments import Parser, whole
from worker_entry.failure import EXIT_FAILED, EXIT_OK, ExpectedError


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    environment.prepare()
    try:
        from worker_entry.data import prepared

        made = prepared.prepare(options.name, options.data_dir, options.files, _tell)
    except ExpectedError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    files = "1 file" if made.source.files == 1 else f"{made.source.files} files"
    print(
        f"{made.source.note}: {made.source.train_examples} training examples in {files},"
        f" {made.source.test_examples} for the test"
    )
    print(f"in {made.folder}")
    print(
        f"to a node: rsync -a --relative {made.root}/./{made.folder.relative_to(made.root)} NODE:{made.root}/"
    )
    print(f"then:      orchestrate launch -- --dataset {options.name} --data-dir {made.root}")
    return EXIT_OK


def _tell(step: str, done: int, total: int) -> None:
    of = f" ({done / 1e6:.1f} of {total / 1e6:.1f} MB)" if total else ""
    print(f"{step}{of}", file=sys.stderr, flush=True)


def _parser() -> Parser:
    made = Parser(
        prog="python -m worker_entry.prepare",
        description="Prepare a data set of tensorflow-datasets, on a machine with internet access or with the"
        " original files in DIR/downloads/manual.",
        allow_abbrev=False,
    )
    made.add_argument("name", help="mnist, fashion_mnist, or any other image classification set")
    made.add_argument(
        "--data-dir",
        type=lambda text: str(Path(text).expanduser().absolute()),
        metavar="DIR",
        help="(default: ~/tensorflow_datasets)",
    )
    made.add_argument(
        "--files",
        type=whole(1),
        metavar="N",
        help="of training data: with one or more for each task, a task reads only its own (default: by size)",
    )
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
