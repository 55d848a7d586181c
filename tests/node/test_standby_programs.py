"""Programs that might detect how they were started print the same with or without us or a standby."""

# ruff: noqa: E501

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base.paths import Paths
from orchestrator.node.task import state
from tests.node.harness import until
from tests.node.lab import Lab


@dataclass(frozen=True)
class Program:
    name: str
    text: str
    argv: tuple[str, ...] = ("train.py",)
    files: dict[str, str | None] = field(default_factory=dict)
    after: dict[str, str | None] = field(default_factory=dict)  # files that change once the standby waits
    warm: bool = True
    env: dict[str, str] = field(default_factory=dict)


_MODULE: dict[str, str | None] = {"own.py": "VALUE = 1\n"}
_PACKAGE: dict[str, str | None] = {
    "pkg/__init__.py": "print('package')\n",
    "pkg/near.py": "VALUE = 2\n",
    "pkg/main.py": "import sys\nfrom . import near\nfrom .near import VALUE\n"
    "print(__name__, __package__, near.VALUE, VALUE, sys.argv, sys.path[0], __spec__.name)\n",
    "pkg/__main__.py": "import sys\nprint('main of', __package__, sys.argv)\n",
}
_POOL = """
import multiprocessing, os
def square(x):
    return x * x, __name__, os.path.basename(__file__), os.getcwd()
if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(square, range(3)))
    print(multiprocessing.current_process().name)
"""

PROGRAMS = [
    Program("arguments", "import sys\nprint(sys.argv, sys.orig_argv[1:])", ("train.py", "--x", "", "é 'y'")),
    Program(
        "argparse",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int)\nprint(p.parse_args())",
        ("train.py", "--n", "x"),
    ),
    Program("traceback", "def f(x):\n    return 1 / x\ntry:\n    f(0)\nexcept ZeroDivisionError as e:\n    raise ValueError('é') from e"),
    Program("exit with a text", "import sys\nsys.exit('the end')"),
    Program("exit status", "raise SystemExit(7)"),
    Program("excepthook", "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[1])\nraise KeyError('k')"),
    Program("atexit", "import atexit\nfor i in range(3):\n    atexit.register(print, 'bye', i)\nprint('now')"),
    Program(
        "signal handler",
        "import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: print('got', a[0]))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print([s.name for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    ),
    Program("killed", "import os, signal\nprint('before')\nos.kill(os.getpid(), signal.SIGKILL)"),
    Program("spawn", _POOL.format(method="spawn")),
    Program("forkserver", _POOL.format(method="forkserver")),
    Program("fork", _POOL.format(method="fork")),
    Program("python -m", "", ("-m", "pkg.main", "--x"), _PACKAGE),
    Program("python -m of a package", "", ("-m", "pkg"), _PACKAGE),
    Program("edited script", "print('old')", after={"train.py": "print('new', __file__)"}),
    Program("edited module", "import own\nprint(own.VALUE)", files=_MODULE, after={"own.py": "VALUE = 'edited'\n"}),
    Program("deleted script", "print('old')", after={"train.py": None}),
    Program("a name of the standard library", "import decimal\nprint(decimal.__file__)", after={"decimal.py": "X = 1\n"}, warm=False),
    Program("a folder of such a name", "import decimal\nprint(decimal.Decimal(1))", files={"decimal/data.csv": ""}),
    Program("stdin", "import sys\nprint(repr(sys.stdin.read()), sys.stdin.isatty())\ninput()"),
    Program("locale", "import locale, sys\nprint(locale.setlocale(locale.LC_CTYPE), locale.getpreferredencoding(), sys.stdout.encoding, 'é')"),
    Program("umask and limits", "import os, resource\nprint(os.umask(0), [resource.getrlimit(i) for i in range(16)], os.nice(0), os.sched_getaffinity(0))"),
    Program("sys.path", "import sys\nprint([p for p in sys.path if '/site/' not in p])\nimport own\nprint(own.__file__)", files=_MODULE),
    Program("a script in a folder", "", ("sub/train.py",), {"sub/train.py": "import sys, own\nprint(sys.path[0], own.__file__, __file__)", "sub/own.py": ""}),
    Program("faulthandler", "import faulthandler, os, signal\nfaulthandler.enable()\ndef f():\n    os.kill(os.getpid(), signal.SIGABRT)\nf()"),
    Program("trace", "def f():\n    return 1\nf()", ("-m", "trace", "--trace", "--ignore-dir=/", "train.py")),
    Program("settrace", "import sys\nseen = []\nsys.settrace(lambda f, e, a: seen.append((e, f.f_code.co_name)))\ndef f():\n    pass\nf()\nsys.settrace(None)\nprint(seen)"),
    Program("pdb", "import pdb\nprint(1)\npdb.run('x = 1; print(x)')"),
    Program("flags", "import sys\nprint(sys.flags, sys.warnoptions, sys._xoptions, __debug__)", ("-O", "-W", "error", "-X", "dev", "train.py")),
    Program("main", "'''doc'''\nimport sys\nprint(__doc__, __name__, __file__, __spec__, __package__, __loader__.__class__, sorted(vars()))\nimport __main__\nprint(__main__.__file__)"),
    Program("warnings", "import warnings\nwarnings.warn('careful')\nprint(warnings.filters)"),
    Program("threads", "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\nprint(threading.main_thread().name, threading.active_count())"),
    Program("a Python below it", "import os, subprocess, sys\nos.environ['MINE'] = 'é'\nprint(subprocess.run([sys.executable, '-c', 'import os, sys; print(os.environ[\"MINE\"], sys.argv, \"decimal\" in sys.modules)'], capture_output=True, text=True).stdout)"),
    Program("environment", "import os\nprint(sorted((k, v) for k, v in os.environ.items() if not k.startswith(('ORCHESTRATE_', 'PYTHON', 'XDG', 'PYTEST'))))\nprint('ORCHESTRATE_STANDBY' in os.environ)"),
    Program("pickle", "import pickle\nclass A:\n    pass\nprint(pickle.loads(pickle.dumps(A())).__class__, pickle.dumps(A))"),
    Program("source", "import inspect\ndef f():\n    return 1  # one\nprint(inspect.getsource(f), inspect.getfile(f))"),
    Program("syntax error", "print('no')\ndef f(:\n"),
    Program("asyncio", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\nprint(asyncio.run(f()))"),
    Program("descriptors", "import os\nlinks = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]\nprint(sorted(one.split(':')[0] for one in links if not one.endswith('(deleted)')))"),
    Program("hash seed", "print(hash('x'), [*{'a', 'b', 'c'}])", env={"PYTHONHASHSEED": "3"}),
    Program("it replaces itself", "import os, sys\nif len(sys.argv) < 2:\n    os.execv(sys.executable, [sys.executable, 'train.py', 'again'])\nprint(sys.argv)"),
    Program("working folder", "import os, tempfile\nopen('made', 'w').write('x')\nprint(os.getcwd(), os.path.abspath('made'), os.environ.get('PWD'), tempfile.gettempdir())"),
    Program("exit is Python's", "import gc, sys\nprint(gc.isenabled(), gc.get_threshold(), sys.exit, sys.exit.__module__)\nsys.exit(3)"),
    Program("a hook that hands on", "import sys\nbefore = sys.excepthook\ndef hook(*found):\n    print('mine'); before(*found)\nsys.excepthook = hook\n1 / 0"),
    Program("a thread's exception", "import threading\nthreading.excepthook = lambda found: print(found.exc_type)\nthread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()"),
    Program("a module named as one of Python's", "import graphlib; print(graphlib.mine)", files={"graphlib.py": "mine = 1\n"}),
    Program("finders", "import sys; print(len(sys.meta_path))"),
    Program("streams", "import os, sys\nprint('a', end='', flush=True)\nsys.stderr.write('b')\nprint('c')\nos.write(1, b'd')\nprint(sys.stdout.name, sys.stdout.errors, sys.stdin.encoding, flush=True)\nos.system('echo e')"),
]  # fmt: skip


def write(folder: Path, files: dict[str, str | None]) -> None:
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def without_addresses(output: str) -> str:
    return re.sub(r"0x[0-9a-f]{8,}", "0x", output)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_the_output_equals_that_of_plain_python(
    lab: Lab, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.environ.get("LC_ALL", "").lower() in ("c", "posix"):  # a task gets a UTF-8 locale
        monkeypatch.delenv("LC_ALL")
    agent, folder = lab.agent(), lab.folder / "code"
    write(folder, {"train.py": program.text, **program.files})
    imports = [
        "decimal",
        "logging",
        "multiprocessing.pool",
        "concurrent.futures",
        "inspect",
        "pdb",
        "asyncio",
    ]
    spec: dict[str, Any] = {
        "argv": [sys.executable, *program.argv],
        "env": {"PYTHONDONTWRITEBYTECODE": "1", **program.env},
        "cwd": str(folder),
        "python": sys.executable,
        "grace": 5.0,
    }
    assert agent.request("standby", specs=[{**spec, "imports": imports}], spare=False)["made"] == 1
    pool = lab.state / "standby"
    until(lambda: any(pool.glob("*/ready")), what="it has imported")
    write(folder, program.after)

    def run(attempt: str, **more: object) -> tuple[bool, object, object, str]:
        asked: dict[str, Any] = {"run": lab.run, "attempt": attempt, "task": "worker/0", "plan": None}
        reply = agent.request("start", **asked, spec=spec | more)
        task = Paths(str(lab.state)).task(lab.run, attempt, "worker/0")
        until(lambda: state.is_final(state.read(task)), what="it has ended")
        end = state.read(task)
        output = Path(task.log).read_text(encoding="utf-8")
        return reply["warm"], end["exit_code"], end["exit_signal"], without_addresses(output)

    warm = run("1", imports=imports)
    cold = run("2")
    plain = subprocess.run(
        [sys.executable, *program.argv],
        cwd=folder,
        env={
            **os.environ,
            "HOME": str(lab.folder),
            "PWD": str(folder),
            "VIRTUAL_ENV": str(Path(sys.executable).parent.parent),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            # LC_CTYPE: set by this test's Python if nothing sets a locale.
            **({} if {"LC_ALL", "LC_CTYPE", "LANG"} & {*os.environ} else {"LANG": "C.UTF-8"}),
            "PYTHONUNBUFFERED": "1",
            "PYTHONBREAKPOINT": "0",
            **spec["env"],
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    status, output = plain.returncode, without_addresses(plain.stdout)
    expected = (status, None, output) if status >= 0 else (None, -status, output)
    assert warm[1:] == cold[1:] == expected
    assert warm[0] is program.warm
