"""What a task's Python changes in TensorFlow and Keras, where the plan asks for it; and a word on downloads.

ORCHESTRATE_KERAS=mend       Keras 3 stays Keras 3. Its trainer makes two mistakes with more than one
worker: it builds the model from a batch that is spread over them, and it takes
the mean of scalars along an axis. Answered, `fit` gives weights that are
bit-identical to one process at the same global batch.
ORCHESTRATE_KERAS=alias      `keras` and all below it are tf_keras: with parameter servers, Keras 3 fails
in more places than can be answered from outside.
TF_USE_LEGACY_KERAS=1        under a strategy, load_weights of tf_keras fails with a `.weights.h5` of its own:
it hands h5py's objects on where arrays are divided among replicas.
urllib3                      says at once that a server cannot be reached, which it tries again and again:
tensorflow-datasets, for one, is silent for more than three minutes.
ORCHESTRATE_AUTO_SHARD=data  data sets whose policy is AUTO are split among workers by their elements
(`off`: not at all), for those of fewer files than workers cannot be split.
tensorflow                   Python's garbage collector rests during its import, and later collections leave
out what it made: 400,000 objects that stay. A start takes 2.2 s of a processor instead of 3.7.
"""

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

_TOLD = 5  # servers that are said to be out of reach
_OUT_OF_REACH = """
orchestrate: a server is out of reach: %s; urllib3 tries again, at most %s times. To have the data there \
beforehand, name them under [data] (docs/data.md)
"""
_TRAINER = "keras.src.backend.tensorflow.trainer"


def install() -> None:
    how = os.environ.get("ORCHESTRATE_KERAS")
    if how == "mend":
        after_import(_TRAINER, mend)
    elif how == "alias":
        sys.meta_path.insert(0, Alias("keras", "tf_keras"))
    if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
        after_import("tf_keras.src.saving.saving_lib", read_arrays)
    if "ORCHESTRATE_STACKS" in os.environ:  # off with the rest
        after_import("urllib3.connectionpool", tell_of_retries)
        sys.meta_path.insert(0, _Watch("tensorflow", _Frozen))
    policy = os.environ.get("ORCHESTRATE_AUTO_SHARD")
    if policy:
        after_import("tensorflow.python.distribute.input_ops", lambda module: split(module, policy))


def mend(trainer: "Any") -> None:
    """Answer both mistakes; a Keras that has other names for these functions is left as it is."""
    several = trainer._collective_all_reduce_multi_worker  # noqa: SLF001
    tree, reduce = trainer.tree, trainer.reduce_per_replica
    model = trainer.TensorFlowTrainer
    build = model._maybe_symbolic_build  # noqa: SLF001

    def reduce_per_replica(values: "Any", strategy: "Any", reduction: str) -> "Any":
        if reduction in ("auto", "mean") and several(strategy):
            return tree.map_structure(lambda one: strategy.reduce("MEAN", one, axis=None), values)
        return reduce(values, strategy, reduction)

    def maybe_symbolic_build(self: "Any", iterator: "Any" = None, data_batch: "Any" = None) -> None:
        strategy = self._distribute_strategy
        if strategy is None or iterator is None or not several(strategy):
            build(self, iterator=iterator, data_batch=data_batch)
            return
        _, _, batches = next(iter(iterator))
        local = tree.map_structure(lambda one: strategy.experimental_local_results(one)[0], next(batches))
        with strategy.scope():
            self._symbolic_build(data_batch=local)

    trainer.reduce_per_replica = reduce_per_replica
    model._maybe_symbolic_build = maybe_symbolic_build  # noqa: SLF001


def read_arrays(saving_lib: "Any") -> None:
    """Let weights that are read be arrays; what is written stays with h5py."""
    store = saving_lib.H5IOStore
    get = store.get

    def arrays(self: "Any", path: "Any") -> "Any":
        found = get(self, path)
        return {name: found[name][()] for name in found} if self.mode == "r" else found

    store.get = arrays


def split(input_ops: "Any", policy: str) -> None:
    """Let AUTO mean this policy; what a program chose itself stays."""
    known: Any = sys.modules["tensorflow.python.data.ops.options"]  # it came before
    policies = known.AutoShardPolicy
    shard = input_ops.auto_shard_dataset

    def auto_shard_dataset(dataset: "Any", *rest: "Any", **named: "Any") -> "Any":
        if dataset.options().experimental_distribute.auto_shard_policy == policies.AUTO:
            wanted = known.Options()
            wanted.experimental_distribute.auto_shard_policy = policies[policy.upper()]
            dataset = dataset.with_options(wanted)
        return shard(dataset, *rest, **named)

    input_ops.auto_shard_dataset = auto_shard_dataset


def tell_of_retries(pool: "Any") -> None:
    """Print what urllib3 logs, mostly to nobody, when no connection can be made; each of it once.

    Nothing else changes: what is tried again may succeed.
    """
    import logging

    seen: "set[str]" = set()

    class Tell(logging.Handler):
        def emit(self, record: "Any") -> None:
            try:
                retries, error = record.args[:2]
                kinds = [kind.__name__ for kind in type(error).__mro__]
                said = str(error).partition(" object at ")[2].partition(">: ")[2] or str(error)
                if "ConnectTimeoutError" in kinds and said not in seen and len(seen) < _TOLD:
                    seen.add(said)
                    sys.stderr.write(_OUT_OF_REACH % (said, retries.total))
            except Exception:
                pass  # another version words it otherwise

    pool.log.addHandler(Tell(logging.WARNING))


def after_import(name: str, change: "Callable[[Any], None]") -> None:
    """Call `change` with the module of that name once it has been imported; its failure changes nothing."""
    sys.meta_path.insert(0, _Watch(name, lambda loader: _Changing(loader, change)))


def _as_importlib(function: "Any") -> "Any":
    """With the lines of importlib, which Python leaves out of the traceback of a failed import."""
    code = function.__code__
    if hasattr(code, "replace"):  # Python 3.8
        function.__code__ = code.replace(co_filename="<frozen importlib._bootstrap>")
    return function


class _Watch:
    """Finds one module as the others do, and wraps its loader."""

    def __init__(self, name: str, wrapped: "Callable[[Any], Any]") -> None:
        self._name = name
        self._wrapped = wrapped

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != self._name:
            return None
        spec: Any = None
        for finder in [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        if spec is not None and spec.loader is not None:
            spec.loader = self._wrapped(spec.loader)
        return spec


class _Handing:
    """A loader that lets another one do the work, and hands the module its own loader back."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":
        """What else a loader may have: `pkgutil.get_data` asks one that nothing was imported with."""
        return getattr(self._loader, name)

    def create_module(self, spec: "Any") -> "Any":
        return self._loader.create_module(spec)

    @_as_importlib
    def exec_module(self, module: "ModuleType") -> None:
        spec: Any = module.__spec__
        module.__loader__ = spec.loader = self._loader
        self._loader.exec_module(module)


class _Frozen(_Handing):
    """Keeps what is there after the import out of all later collections (`gc.freeze`, Python 3.7).

    Only after the first import: what the program makes later is its own, and may become garbage.
    """

    _done = False

    @_as_importlib
    def exec_module(self, module: "ModuleType") -> None:
        collects = gc.isenabled()
        gc.disable()
        try:
            super().exec_module(module)
            if not _Frozen._done:
                _Frozen._done = True
                gc.freeze()
        finally:
            if collects:
                gc.enable()


class _Changing(_Handing):
    """Changes the module once it is there."""

    def __init__(self, loader: "Any", change: "Callable[[Any], None]") -> None:
        super().__init__(loader)
        self._change = change

    @_as_importlib
    def exec_module(self, module: "ModuleType") -> None:
        super().exec_module(module)
        try:
            self._change(module)
        except Exception:
            pass  # another version: what it does by itself is what one gets


class Alias:
    """Resolves a package and all below it to another one: under both names it is the same module."""

    def __init__(self, name: str, real: str) -> None:
        self._name = name
        self._real = real

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """For TensorFlow, which asks where `keras` lies, the place is that of the real `keras`."""
        del path, target
        if name != self._name and not name.startswith(self._name + "."):
            return None  # before any import of ours: each would come by here
        import importlib.machinery
        import importlib.util

        real = self._real + name[len(self._name) :]
        found = importlib.util.find_spec(real)
        if found is None:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=found.origin)  # type: ignore[arg-type]
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: "Any") -> None:
        """The usual kind of module will do: it is replaced at once."""

    def exec_module(self, module: "ModuleType") -> None:
        import importlib

        name = module.__name__
        sys.modules[name] = importlib.import_module(self._real + name[len(self._name) :])
