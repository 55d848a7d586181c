"""Prepares every Python of a task, before its program: found first on the PYTHONPATH.

It runs in any version of Python. It steps aside for the `sitecustomize` that would have been found without
it, whose mistakes stay its own, and says nothing of itself. Stacks and the error record are all that a task
gets without being asked; each stands alone: where one cannot be had, the task goes on without it. What the
plan asks for beyond them has to be there.
"""

# ruff: noqa: ANN201 - a Python too old for annotations has to read it, too

import sys


def step_aside():  # type: () -> None
    """Import the one that comes after us; `site` judges its exceptions as ever."""
    sys.path[:] = [folder for folder in sys.path if folder != HERE]
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


def install():  # type: () -> None
    parts = ["site_stacks", "site_errors", "site_modules"]  # files beside this one; each has an `install`
    sys.path.insert(0, HERE)
    try:
        for name in parts:
            try:
                __import__(name).install()
            except Exception:
                pass  # a full disk, a Python without the module: the task goes on without this part
    finally:
        sys.path[:] = [folder for folder in sys.path if folder != HERE]
        for name in parts:
            sys.modules.pop(name, None)


if __name__ == "sitecustomize":
    HERE = __file__.rpartition("/")[0]
    try:
        step_aside()
    finally:
        try:
            install()
        except Exception:
            pass  # Python 2 has emptied this module by now
