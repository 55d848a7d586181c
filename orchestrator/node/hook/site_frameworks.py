"""Repair Keras and shard files in a task's Python, as the plan requires (docs/task.md).

ORCHESTRATE_KERAS       a list: `keras` (several workers train with Keras 3), `tf_keras` (it is tf.keras)
ORCHESTRATE_KERAS_OF    modules that the program imports: if one is built on Keras 3, tf.keras becomes that
ORCHESTRATE_AUTO_SHARD  `data`: AutoShardPolicy.AUTO means DATA; `auto`: only if AUTO cannot divide the files

A framework that differs from what this file expects is an error before training.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

# The versions of Keras 3 for which the repair was verified. Metrics of 3.8 and 3.9 count twice what others
# have already counted, and 3.5 scales the loss differently.
_FIRST, _LAST = (3, 10), (3, 15)
_SIGNATURES = {
    "reduce_per_replica": "values strategy reduction",
    "TFEpochIterator.__init__": "self distribute_strategy",
    "TensorFlowTrainer._maybe_symbolic_build": "self iterator data_batch",
    "TensorFlowTrainer._symbolic_build": "self iterator data_batch",
}
_REPAIRED = ["fit", "evaluate", "steps_per_execution", "moving statistics of layers", "loss scaling"]
_REPAIRED += ["gradient clipping", "losses that are one number"]
_missing: "List[str]" = []  # what this Keras lacks of what is repaired
_compared: "List[bool]" = []  # the weights of the tasks
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
_READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CSVDataset", "SSTableDataset")


def changes() -> "Dict[str, Callable[[Any], None]]":
    choose_keras()
    keras = os.environ.get("ORCHESTRATE_KERAS", "").split(",")
    policy = os.environ.get("ORCHESTRATE_AUTO_SHARD")
    made: "Dict[str, Callable[[Any], None]]" = {}
    if "tf_keras" in keras:
        made.update(dict.fromkeys(("tf_keras.api._v2.keras", "tensorflow.keras"), name_version))
        made["tf_keras.src.saving.saving_lib"] = read_arrays
        made.update(dict.fromkeys(("tf_keras.src.callbacks", "keras.src.callbacks"), compare))
        if "KERAS_HOME" in os.environ:
            made["tf_keras.src.utils.data_utils"] = keep_home
    if "keras" in keras:
        made["keras.src.backend.tensorflow.trainer"] = repair
        made["keras.src.callbacks.callback_list"] = compare
        made["keras.src.layers.layer"] = _if_there(average)
        made["keras.src.optimizers.loss_scale_optimizer"] = _if_there(agree)
        made["keras.src.backend.tensorflow.optimizer"] = _if_there(clip)
        made["keras.src.losses.loss"] = _if_there(divide)
        made["keras.src.layers.normalization.batch_normalization"] = _if_there(keep)
    if policy and "ORCHESTRATE_REPORT" in os.environ:
        made["tensorflow.python.distribute.cross_device_utils"] = note_reductions
    if policy or "keras" in keras:
        made["tensorflow.python.distribute.input_ops"] = lambda module: share(module, policy or "")
    return made


def _if_there(change: "Callable[[Any], None]") -> "Callable[[Any], None]":
    """Record that a part of Keras lacks what is to be changed: `fit` is then refused, not its import."""

    def changed(module: "Any") -> None:
        try:
            change(module)
        except AttributeError as error:
            _missing.append(str(error))

    return changed


def note_reductions(module: "Any") -> None:
    """Keep a mark next to the report until the strategy's first reduction among several workers.

    A model created outside its scope trains separately, although the strategy has connected the workers.
    """
    launcher = module.CollectiveReplicaLauncher
    start = launcher.__init__
    marks: "List[str]" = []  # created only then: the report is unknown while a standby imports
    reduced: "List[bool]" = []

    def init(self: "Any", group_key: int, group_size: int, *more: "Any", **named: "Any") -> None:
        start(self, group_key, group_size, *more, **named)
        if group_size > 1 and not reduced:
            marks[:] = [os.environ["ORCHESTRATE_REPORT"] + ".idle"]
            os.close(os.open(marks[0], os.O_CREAT | os.O_WRONLY, 0o600))

    def noting(before: "Any") -> "Any":
        def reduce(self: "Any", *values: "Any", **named: "Any") -> "Any":
            if not reduced and self._group_size > 1:
                reduced.append(True)
                for mark in filter(os.path.exists, marks):
                    os.unlink(mark)
            return before(self, *values, **named)

        return reduce

    launcher.__init__ = init
    for name in ("all_reduce", "batch_all_reduce", "all_gather", "all_reduce_indexed_slices"):
        setattr(launcher, name, noting(getattr(launcher, name)))


def choose_keras() -> None:
    """Remove TF_USE_LEGACY_KERAS where it would break the program.

    TensorFlow 2.15 has Keras 2 without it, and without tf_keras. If a package that the program imports is
    built on Keras 3, tf.keras has to be that as well: a mix of both fails.
    """
    names = os.environ.pop("ORCHESTRATE_KERAS_OF", "")
    if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
        return
    if "tf_keras" in os.environ.get("ORCHESTRATE_KERAS", "") and _has_only_keras_2():
        del os.environ["TF_USE_LEGACY_KERAS"]
        return
    for name in names.split(","):
        if name and _built_on_keras(name):
            del os.environ["TF_USE_LEGACY_KERAS"]
            _say("tf.keras is Keras 3, since %s is built on it; `legacy_keras` under [job] decides" % name)
            return


def _has_only_keras_2() -> bool:
    import importlib.util

    if importlib.util.find_spec("tf_keras") is not None:
        return False
    from importlib import metadata

    try:
        return metadata.version("keras").startswith("2.")
    except metadata.PackageNotFoundError:
        return False


def _built_on_keras(name: str) -> bool:
    """Return True if importing a module imports `keras` itself, as far as its files show."""
    import importlib.util

    top = name.split(".", maxsplit=1)[0]
    spec = importlib.util.find_spec(top)
    home = os.path.dirname((spec.submodule_search_locations or [spec.origin or ""])[0]) if spec else ""
    waiting = [name]
    read: "Set[str]" = set()
    while home and waiting and len(read) < 300:
        parts = waiting.pop().split(".")
        for length in range(1, len(parts) + 1):  # a package is imported before its modules
            path = os.path.join(home, *parts[:length])
            path = os.path.join(path, "__init__.py") if os.path.isdir(path) else path + ".py"
            if path in read or not os.path.isfile(path):
                continue
            read.add(path)
            imported = _imports(path, parts[: length if path.endswith("__init__.py") else length - 1])
            if "tf_keras" not in imported and "keras" in imported:
                return True
            waiting += [imported_name for imported_name in imported if imported_name.split(".")[0] == top]
    return False


def _imports(path: str, package: "List[str]") -> "Set[str]":
    """Return the modules that a file imports when it is imported, and the top levels of their names."""
    import ast

    names: "Set[str]" = set()
    waiting: "List[Any]" = []
    try:
        with open(path, "rb") as file:
            waiting.append(ast.parse(file.read()))
    except (OSError, SyntaxError, ValueError):
        pass  # of another Python: it cannot be parsed
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            names.update([module, *("%s.%s" % (module, alias.name) for alias in node.names)])
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return names | {name.split(".")[0] for name in names}


def repair(trainer: "Any") -> None:
    """Make Keras 3 train on several workers by correcting its errors, or refuse with the reason.

    It builds the model from a batch that is spread over the workers, takes the mean of scalars along an
    axis, and passes values of all replicas to a loop of TensorFlow if one execution makes several steps.
    """
    model = trainer.TensorFlowTrainer
    version = _version()
    odd = _unexpected(trainer) if _minor(version) >= _FIRST else "it is older than %d.%d" % _FIRST
    if odd:
        for name in ("fit", "evaluate"):
            setattr(model, name, _behind(lambda _: _refuse(version, odd), getattr(model, name)))
        return
    tree, reduce, build = trainer.tree, trainer.reduce_per_replica, model._maybe_symbolic_build  # noqa: SLF001

    def reduce_per_replica(values: "Any", strategy: "Any", reduction: str) -> "Any":
        if reduction in ("auto", "mean") and several(strategy):
            return tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)
        return reduce(values, strategy, reduction)

    def maybe_symbolic_build(self: "Any", iterator: "Any" = None, data_batch: "Any" = None) -> None:
        strategy = self._distribute_strategy
        if iterator is not None and strategy is not None and several(strategy):
            data_batch, iterator = tree.map_structure(_of_replica, _first(iterator)), None
        build(self, iterator=iterator, data_batch=data_batch)

    trainer.reduce_per_replica = reduce_per_replica
    model._maybe_symbolic_build = maybe_symbolic_build  # noqa: SLF001
    for name in ("fit", "evaluate"):
        setattr(model, name, _behind(_step_by_step, getattr(model, name)))
    _record(version)


def _first(iterator: "Any") -> "Any":
    """Return a batch, or its specification: nothing is taken from data that can be read only once."""
    data = iterator._distributed_dataset  # noqa: SLF001
    tf: Any = sys.modules["tensorflow"]
    spec = data.element_spec
    if all(map(_has_sizes, tf.nest.flatten(tf.nest.map_structure(_of_replica, spec)))):
        return spec
    rest = iter(data)
    batch = next(rest)
    again = iterator._get_iterator  # noqa: SLF001

    def batches() -> "Iterator[Any]":
        yield batch
        yield from rest
        raise tf.errors.OutOfRangeError(None, None, "the end of the data")  # the end that Keras expects

    def get_iterator() -> "Any":
        iterator._get_iterator = again  # noqa: SLF001
        return batches()

    iterator._get_iterator = get_iterator  # noqa: SLF001
    return batch


def _has_sizes(spec: "Any") -> bool:
    """Return True if all sizes except that of the batch are known, or vary within a batch."""
    shape = spec.shape
    return hasattr(spec, "ragged_rank") or (shape.rank is not None and None not in shape.as_list()[1:])


def _of_replica(value: "Any") -> "Any":
    """Return the part of a value, or of its specification, that belongs to a task's first replica."""
    parts = getattr(value, "_value_specs", None) or getattr(value, "values", None)
    return parts[0] if isinstance(parts, (list, tuple)) else value


def several(strategy: "Any") -> bool:
    """Return True for a strategy that joins several workers by collective operations."""
    try:
        return bool(strategy.extended._in_multi_worker_mode())  # noqa: SLF001
    except (AttributeError, NotImplementedError):
        return False


def _unexpected(trainer: "Any") -> str:
    """Return the part of Keras that differs from what the repair expects; "" for none."""
    for name, signature in _SIGNATURES.items():
        place = trainer
        for part in name.split("."):
            place = getattr(place, part, None)
        code = getattr(place, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if code else ()
        if " ".join(names[: signature.count(" ") + 1]) != signature:
            return "%s(%s) is not there" % (name, signature.replace(" ", ", "))
    stored = trainer.TFEpochIterator.__init__.__code__.co_names
    return "" if "_distributed_dataset" in stored else "TFEpochIterator._distributed_dataset is not there"


def _behind(first: "Any", function: "Any") -> "Any":
    """Make a method of several workers' models do something first."""

    def call(self: "Any", *args: "Any", **named: "Any") -> "Any":
        if several(self.distribute_strategy):
            first(self)
        return function(self, *args, **named)

    return call


def _refuse(version: str, odd: str) -> None:
    raise RuntimeError(
        "orchestrate cannot repair Keras %s for several tasks: %s. Install Keras %d.%d to %d.%d, set"
        " legacy_keras = true under [job] for Keras 2, or repair_keras = false to train as it is"
        % (version, odd, *_FIRST, *_LAST)
    )


def _step_by_step(model: "Any") -> None:
    """Make each step a separate execution."""
    if _missing:
        _refuse(_version(), _missing[0])
    model.steps_per_execution = 1


def compare(callbacks: "Any") -> None:
    """Make tasks compare their weights when `fit` has restored them."""
    begin = callbacks.CallbackList.on_train_begin

    def on_train_begin(self: "Any", logs: "Any" = None) -> None:
        begin(self, logs)
        # A program's own loop may have callbacks in one task only.
        if "keras.src." in sys._getframe(1).f_globals["__name__"]:  # noqa: SLF001
            _begin_alike(self.model)

    callbacks.CallbackList.on_train_begin = on_train_begin


def _begin_alike(model: "Any") -> None:
    """Raise if tasks begin the first `fit` after a restart with different weights, which would stay different.

    It happens if each loads its own checkpoint, and one of them ended before it saved the last one. Different
    machines also round differently: after the same steps, a norm that clips gradients differs by 1e-7.
    Without a restart the tasks exchange only what the program does.
    """
    if _compared or os.environ.get("ORCHESTRATE_ATTEMPT", "1") in ("1", "validate"):
        return
    tf, strategy = sys.modules.get("tensorflow"), getattr(model, "distribute_strategy", None)
    if tf is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return  # parameter servers have one copy
    _compared.append(True)
    values: "List[float]" = []
    for weight in map(tf.convert_to_tensor, model.trainable_weights if model.built else ()):
        if weight.dtype in (tf.float32, tf.float64):  # half precision rounds far more
            values += tf.reshape(weight, [-1])[:100].numpy().tolist()
    mine = [sum(values[at::64]) for at in range(64)]  # as many in a task whose model is not built

    def average() -> "Any":
        return tf.distribute.get_replica_context().all_reduce("MEAN", tf.constant(mine, tf.float32))

    results = tf.function(lambda: strategy.run(average), autograph=False)()  # one from each GPU of this task
    means = strategy.experimental_local_results(results)[0].numpy().tolist()
    if sum(abs(mean - mine[at]) for at, mean in enumerate(means)) > 1e-5 * sum(map(abs, mine)):
        raise RuntimeError("the tasks begin to train with different weights, which would stay different")


def agree(optimizers: "Any") -> None:
    """Make workers agree on whether gradients are finite: the others would wait for one that skips a step."""
    optimizer = optimizers.LossScaleOptimizer
    check = optimizer.check_finite

    def check_finite(self: "Any", grads: "Any") -> "Any":
        tf: Any = sys.modules["tensorflow"]
        finite, context = check(self, grads), tf.distribute.get_replica_context()
        if context is None or not several(context.strategy):
            return finite
        return tf.equal(context.all_reduce("SUM", tf.cast(tf.logical_not(finite), tf.float32)), 0.0)

    optimizer.check_finite = check_finite


def clip(optimizers: "Any") -> None:
    """Clip the sum of the workers' gradients: Keras 3 clips the part of each, and so permits more."""
    optimizer = optimizers.TFOptimizer
    limit, reduce = optimizer._clip_gradients, optimizer._all_reduce_sum_gradients  # noqa: SLF001

    def clip_gradients(self: "Any", grads: "Any") -> "Any":
        return grads if several(self._distribution_strategy) else limit(self, grads)

    def all_reduce_sum_gradients(self: "Any", grads_and_vars: "Any") -> "Any":
        reduced = reduce(self, grads_and_vars)
        if not several(self._distribution_strategy):
            return reduced
        grads = limit(self, [grad for grad, _ in reduced])
        return [(grads[at], variable) for at, (_, variable) in enumerate(reduced)]

    optimizer._clip_gradients = clip_gradients  # noqa: SLF001
    optimizer._all_reduce_sum_gradients = all_reduce_sum_gradients  # noqa: SLF001


def divide(losses: "Any") -> None:
    """Divide a loss that is one number by the replicas, as Keras does with one number per element."""
    reduce, scale = losses.reduce_values, losses.scale_loss_for_distribution

    def reduce_values(values: "Any", *rest: "Any", **named: "Any") -> "Any":
        loss = reduce(values, *rest, **named)
        how = named.get("reduction", rest[-1] if rest else "mean")  # the last parameter in each version
        if tuple(values.shape) or how in (None, "none", "sum"):
            return loss
        return scale(loss) if several(sys.modules["tensorflow"].distribute.get_strategy()) else loss

    losses.reduce_values = reduce_values


def average(layer: "Any") -> None:
    """Average the moving statistics of layers across tasks, as Keras 2 does, and keep losses by replica."""
    add = layer.Layer.add_weight
    if "tensorflow" not in sys.modules:
        return  # the host's keras.json names another backend

    def add_weight(self: "Any", *args: "Any", **named: "Any") -> "Any":
        trained = named.get("trainable", True) or named.get("aggregation") not in (None, "none")
        number = "float" in str(named.get("dtype") or "float")
        if number and not trained and several(sys.modules["tensorflow"].distribute.get_strategy()):
            named["aggregation"] = "mean"
        return add(self, *args, **named)

    layer.Layer.add_weight = add_weight

    # To average, replicas of a task take turns in the middle of a call: in one list their losses would mix.
    def losses(self: "Any") -> "Any":
        context = sys.modules["tensorflow"].distribute.get_replica_context()
        replica = context._replica_id if context else 0  # noqa: SLF001
        return self.__dict__.setdefault("_losses_of_replicas", {}).setdefault(replica, [])

    layer.Layer._losses = property(losses, lambda _self, _value: None)  # noqa: SLF001


def keep(normalization: "Any") -> None:
    """Keep the moving statistics where a task has no element of a last batch: its moments are NaN."""
    layer = normalization.BatchNormalization
    measure = layer._moments  # noqa: SLF001

    def moments(self: "Any", inputs: "Any", mask: "Any") -> "Any":
        tf, measured = sys.modules.get("tensorflow"), measure(self, inputs, mask)
        if self.synchronized or tf is None or not several(tf.distribute.get_strategy()):
            return measured
        some, kept = tf.size(inputs) > 0, (self.moving_mean, self.moving_variance)
        return [tf.where(some, measured[at], tf.cast(old, inputs.dtype)) for at, old in enumerate(kept)]

    layer._moments = moments  # noqa: SLF001


def name_version(keras: "Any") -> None:
    """Give Keras 2 the version attribute of Keras 3, as `tf.keras` and as the module that an import makes."""
    if not hasattr(keras, "__version__"):
        keras.__version__ = sys.modules["tf_keras"].__version__


def keep_home(data_utils: "Any") -> None:
    """Make tf_keras store its files in KERAS_HOME, as Keras 3 does."""
    get_file = data_utils.get_file

    def get_at_home(*args: "Any", **named: "Any") -> "Any":
        if len(args) < 10 and named.get("cache_dir") is None:  # the tenth, if it is positional
            named["cache_dir"] = os.environ["KERAS_HOME"]
        return get_file(*args, **named)

    data_utils.get_file = get_at_home


def read_arrays(saving_lib: "Any") -> None:
    """Convert weights that tf_keras reads to arrays: h5py's objects cannot be divided among replicas."""
    store = saving_lib.H5IOStore
    get = store.get

    def arrays(self: "Any", path: "Any") -> "Any":
        entry = get(self, path)
        return {name: entry[name][()] for name in entry} if self.mode == "r" else entry

    store.get = arrays


def share(input_ops: "Any", policy: str) -> None:
    """Shard data sets by element among workers; a policy that the program chose is kept.

    They train on copies of what Python yields: TensorFlow's kernels reuse their inputs, and wrote into the
    program's arrays (2.21, two workers).
    """
    options: Any = sys.modules["tensorflow.python.data.ops.options"]  # it was imported before
    shard = input_ops.auto_shard_dataset

    def auto_shard_dataset(dataset: "Any", num_shards: "Any", index: "Any", *rest: "Any") -> "Any":
        chosen = getattr(dataset, "options", options.Options)().experimental_distribute.auto_shard_policy
        if any(op in _PYTHON for _, names in _parts(dataset) for op in names):
            dataset = dataset.map(_copy)
        if policy and chosen == options.AutoShardPolicy.AUTO:
            files = _files(dataset) if policy == "auto" else 0
            if policy == "data" or 0 < files < int(num_shards):
                by_element = options.Options()
                by_element.experimental_distribute.auto_shard_policy = options.AutoShardPolicy.DATA
                dataset = dataset.with_options(by_element)
            if 0 < files < int(num_shards):
                _say(
                    "%d file%s cannot be shared by %d workers: each reads all and trains on its part of the"
                    ' elements (AutoShardPolicy.DATA); auto_shard = "off" under [job] turns it off'
                    % (files, "s" * (files > 1), int(num_shards))
                )
        return shard(dataset, num_shards, index, *rest)

    input_ops.auto_shard_dataset = auto_shard_dataset


def _parts(dataset: "Any") -> "Iterator[Tuple[Any, List[str]]]":
    """Yield each data set that one consists of, with the names of its kind and its operations."""
    waiting = [dataset] if hasattr(dataset, "_inputs") else []
    while waiting:
        part = waiting.pop()
        waiting += part._inputs()  # noqa: SLF001
        graphs = [function.function.graph.as_graph_def() for function in part._functions()]  # noqa: SLF001
        nodes = [node.op for graph in graphs for node in graph.node]
        nodes += [node.op for graph in graphs for f in graph.library.function for node in f.node_def]
        yield part, [*nodes, type(part).__name__]


def _files(dataset: "Any") -> int:
    """Return the number of files that a data set reads, the elements of its smallest source; 0 for none."""
    parts = list(_parts(dataset))
    if not any(op.startswith(_READERS) for _, names in parts for op in names):
        return 0
    try:
        counts = [int(part.cardinality()) for part, _ in parts if not part._inputs()]  # noqa: SLF001
    except TypeError:
        return 0  # inside a tf.function, as with parameter servers, it is not known yet
    return max(0, min(counts)) if counts else 0


def _copy(*batch: "Any") -> "Any":
    tf: Any = sys.modules["tensorflow"]
    inputs = batch if len(batch) > 1 else batch[0]
    return tf.nest.map_structure(lambda x: tf.raw_ops.DeepCopy(x=x), inputs, expand_composites=True)


def _version() -> str:
    from importlib import import_module

    return str(import_module("keras.src.version").__version__)


def _minor(version: str) -> "Tuple[int, ...]":
    return tuple(map(int, version.split(".")[:2]))


def _record(version: str) -> None:
    if os.environ.get("ORCHESTRATE_SPEAKER", str(os.getpid())) != str(os.getpid()):
        return
    untried = "" if _FIRST <= _minor(version) <= _LAST else "; this version was not tried before"
    _say("Keras %s, repaired for several tasks: %s%s" % (version, ", ".join(_REPAIRED), untried))
    report = os.environ.get("ORCHESTRATE_REPORT")
    if report:
        repaired = '", "'.join(_REPAIRED)
        with open(report, "a") as file:
            file.write('{"kind": "keras", "version": "%s", "repaired": ["%s"]}\n' % (version, repaired))


def _say(text: str) -> None:
    sys.stderr.write("orchestrate: %s\n" % text)
