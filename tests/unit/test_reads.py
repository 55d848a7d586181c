"""Which paths of one machine a program reads, as far as its text tells."""

from __future__ import annotations

import pytest

from orchestrator.findings import reads
from orchestrator.findings.sourcefile import SourceFile

READ = {
    "pd.read_csv('/data/train.csv')": {"/data/train.csv": 1},
    "DATA = '/home/me/data'\nx = load(DATA)": {"/home/me/data": 1},
    "import os\nx = os.path.join('~/data', name)": {"~/data": 2},
    "with open('/srv/labels.txt', 'r') as f:\n    pass": {"/srv/labels.txt": 1},
    "def f():\n    for x in ['/a/1.npy', '/a/2.npy']:\n        g(x)": {"/a/1.npy": 2, "/a/2.npy": 2},
    "c = {'data_dir': '/mnt/set', 'lr': 1}": {"/mnt/set": 1},
    "p.add_argument('--data', default='/mnt/set')": {"/mnt/set": 1},
    "flags.DEFINE_string('data', '/mnt/set', 'where')": {"/mnt/set": 1},
    "a = '/mnt/set'\nb = '/mnt/set'": {"/mnt/set": 1},
    "Path('/mnt/set').read_text()": {"/mnt/set": 1},
    "x = os.environ.get('DATA', '/mnt/set')": {"/mnt/set": 1},
    "pd.read_csv('data/train.csv')": {"data/train.csv": 1},
    "x = np.load('a.npy')": {"a.npy": 1},
    "d = image_dataset_from_directory('images')": {"images": 1},
    "x = os.path.join('data', name)": {"data": 1},
    "x = glob.glob('data/*.tfrecord')": {"data": 1},
    "for n in range(3):\n    f(f'data/{n}.npy', '/set/part-%d' % n)": {"data/": 2, "/set": 2},
    "x = f('../other/train.csv')": {"../other/train.csv": 1},
}
LEFT = [
    "",
    "x = '/'",
    "x = 'data'",
    "x = open('..')",
    "sys.path.insert(0, '/home/me/lib')",
    "x = d['data']",
    "x = f'{top}/data/train.csv'",
    "x = 'a\\nb/c.csv'",
    "load('https://example.org/a.csv')",
    "x = load('results/a.csv')",
    "x = load('ckpt-3.index')",
    "x = '/usr/share/dict/words'",
    "x = '/tmp/mnist'",
    "'''/mnt/set'''",
    "print('/mnt/set')",
    "logging.info('/mnt/set')",
    "LOG_DIR = '/mnt/set'",
    "c = {'output': '/mnt/set'}",
    "open('/mnt/set', 'w')",
    "open('/mnt/set', mode='ab')",
    "os.makedirs('/mnt/set')\nsave(x, '/mnt/other')\nx = '/mnt/results'",
    "TensorBoard(log_dir='/mnt/set')",
    "model.save('/mnt/set')",
    "Path('/mnt/set').write_text(x)",
    "Path('/mnt/set').mkdir(exist_ok=True)",
    "p.add_argument('--log-dir', default='/mnt/set')",
    "if os.path.exists('/mnt/set'):\n    x = load('/mnt/set')",
    "if not Path('/mnt/set').is_dir():\n    x = 1",
    "if path == '/mnt/set':\n    pass",
    "x = (",
]


def own(text: str, *words: str) -> dict[str, int]:
    return {one.path: one.line for one in reads.each([SourceFile("train.py", text)], words)}


@pytest.mark.parametrize(("text", "found"), READ.items(), ids=READ)
def test_what_is_read(text: str, found: dict[str, int]) -> None:
    assert own(text) == found


@pytest.mark.parametrize("text", LEFT, ids=LEFT)
def test_what_is_written_asked_for_or_shown_is_left_out(text: str) -> None:
    assert own(text) == {}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("p.add_argument('--data', '-d', default='/mnt/set')", "--data"),
        ("p.add_argument('--data', '-d', default='/mnt/set')", "-d"),
        ("flags.DEFINE_string('data', '/mnt/set', 'where')", "--data"),
        ("x = os.environ.get('DATA', '/mnt/set')", "DATA"),
    ],
)
def test_a_default_that_is_not_used_is_left_out(text: str, word: str) -> None:
    assert own(text) == {"/mnt/set": 1}
    assert own(text, word) == {}


def test_an_expression_of_a_thousand_calls() -> None:
    assert own("x = q" + ".add('/mnt/set')" * 20) == {"/mnt/set": 1}
    # Whether a longer one can be read depends on the Python; it raises nothing.
    assert own("x = q" + ".add('/mnt/set')" * 3000) in ({}, {"/mnt/set": 1})
