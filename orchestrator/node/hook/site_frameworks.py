"""Repair Keras and shard files in a task's Python, as the plan requires (docs/task.md).

ORCHESTRATE_KERAS       a list: `keras` (several workers train with Keras 3), `tf_keras` (it is tf.keras)
ORCHESTRATE_KERAS_OF    modules that the program imports: if one is built on Keras 3, tf.keras becomes Keras 3
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
_missing: "List[str]" = []  # parts that the repair needs and this Keras lacks
_compared: "List[bool]" = []  # not empty once the tasks have compared their weights
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
    """Return a change that records a part missing in this Keras: `fit` then fails, not the import."""

    def changed(module: "Any") -> None:
        try:
            change(module)
        except AttributeError as error:
            _missing.append(str(error))

    return changed


def note_reductions(module: "Any") -> None:
    """Keep a mark next to the report until the strategy's first reduction among workers.

    A model created outside its scope trains separately, although the strategy has connected the workers.
    """
    launcher = module.CollectiveReplicaLauncher
    start = launcher.__init__
    marks: "List[str]" = []  # set later: the report's path is unknown while a standby imports
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

    TensorFlow 2.15 has Keras 2 without this variable and without tf_keras. If a package that the program
    imports is built on Keras 3, tf.keras must be Keras 3 as well: a mix of both fails.
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
    """Return the modules that importing a file imports, and their top-level packages."""
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

    Keras 3 builds the model from a batch that is spread over the workers, takes the mean of scalars along an
    axis, and passes values of all replicas to a TensorFlow loop if one execution makes several steps.
    """
    model = trainer.TensorFlowTrainer
    version = _version()
    difference = _unexpected(trainer) if _minor(version) >= _FIRST else "it is older than %d.%d" % _FIRST
    if difference:
        for name in ("fit", "evaluate"):
            setattr(model, name, _prefixed(lambda _: _refuse(version, difference), getattr(model, name)))
        return
    tree, reduce, build = trainer.tree, trainer.reduce_per_replica, model._maybe_symbolic_build  # noqa: SLF001

    def reduce_per_replica(values: "Any", strategy: "Any", reduction: str) -> "Any":
        if reduction in ("auto", "mean") and is_multi_worker(strategy):
            return tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)
        return reduce(values, strategy, reduction)

    def maybe_symbolic_build(self: "Any", iterator: "Any" = None, data_batch: "Any" = None) -> None:
        strategy = self._distribute_strategy
        if iterator is not None and strategy is not None and is_multi_worker(strategy):
            data_batch, iterator = tree.map_structure(_of_replica, _first(iterator)), None
        build(self, iterator=iterator, data_batch=data_batch)

    trainer.reduce_per_replica = reduce_per_replica
    model._maybe_symbolic_build = maybe_symbolic_build  # noqa: SLF001
    for name in ("fit", "evaluate"):
        setattr(model, name, _prefixed(_step_by_step, getattr(model, name)))
    _record(version)


def _first(iterator: "Any") -> "Any":
    """Return the specification of a batch; if it is incomplete, a batch, which the iterator yields again."""
    data = iterator._distributed_dataset  # noqa: SLF001
    tf: Any = sys.modules["tensorflow"]
    spec = data.element_spec
    if all(map(_has_sizes, tf.nest.flatten(tf.nest.map_structure(_of_replica, spec)))):
        return spec
    rest = iter(data)
    batch = next(rest)
    original = iterator._get_iterator  # noqa: SLF001

    def batches() -> "Iterator[Any]":
        yield batch
        yield from rest
        raise tf.errors.OutOfRangeError(None, None, "the end of the data")  # the end that Keras expects

    def get_iterator() -> "Any":
        iterator._get_iterator = original  # noqa: SLF001
        return batches()

    iterator._get_iterator = get_iterator  # noqa: SLF001
    return batch


def _has_sizes(spec: "Any") -> bool:
    """Return True if all dimensions but the batch's are known, or are ragged."""
    shape = spec.shape
    return hasattr(spec, "ragged_rank") or (shape.rank is not None and None not in shape.as_list()[1:])


def _of_replica(value: "Any") -> "Any":
    """Return the part of a value, or of its specification, that belongs to a task's first replica."""
    parts = getattr(value, "_value_specs", None) or getattr(value, "values", None)
    return parts[0] if isinstance(parts, (list, tuple)) else value


def is_multi_worker(strategy: "Any") -> bool:
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


def _prefixed(first: "Any", function: "Any") -> "Any":
    """Return a method that calls `first` before `function`, for models of several workers."""

    def call(self: "Any", *args: "Any", **named: "Any") -> "Any":
        if is_multi_worker(self.distribute_strategy):
            first(self)
        return function(self, *args, **named)

    return call


def _refuse(version: str, difference: str) -> None:
    raise RuntimeError(
        "orchestrate cannot repair Keras %s for several tasks: %s. Install Keras %d.%d to %d.%d, set"
        " legacy_keras = true under [job] for Keras 2, or repair_keras = false to train as it is"
        % (version, difference, *_FIRST, *_LAST)
    )


def _step_by_step(model: "Any") -> None:
    """Make each step a separate execution."""
    if _missing:
        _refuse(_version(), _missing[0])
    model.steps_per_execution = 1


def compare(callbacks: "Any") -> None:
    """Make tasks compare their weights after the callbacks of `fit` have restored them."""
    begin = callbacks.CallbackList.on_train_begin

    def on_train_begin(self: "Any", logs: "Any" = None) -> None:
        begin(self, logs)
        # A program's own loop may have callbacks in one task only.
        if "keras.src." in sys._getframe(1).f_globals["__name__"]:  # noqa: SLF001
            _begin_alike(self.model)

    callbacks.CallbackList.on_train_begin = on_train_begin


def _begin_alike(model: "Any") -> None:
    """Raise if tasks begin the first `fit` after a restart with different weights: they would stay so.

    This happens if each task loads its own checkpoint, and one ended before it saved the last one. Different
    machines also round differently: after the same steps, a norm that clips gradients differs by 1e-7.
    Without a restart the tasks exchange only what the program does.
    """
    if _compared or os.environ.get("ORCHESTRATE_ATTEMPT", "1") in ("1", "validate"):
        return
    tf, strategy = sys.modules.get("tensorflow"), getattr(model, "distribute_strategy", None)
    if tf is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return  # with parameter servers there is one copy
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
        if context is None or not is_multi_worker(context.strategy):
            return finite
        return tf.equal(context.all_reduce("SUM", tf.cast(tf.logical_not(finite), tf.float32)), 0.0)

    optimizer.check_finite = check_finite


def clip(optimizers: "Any") -> None:
    """Clip the sum of the workers' gradients: Keras 3 clips each worker's part, and so exceeds the limit."""
    optimizer = optimizers.TFOptimizer
    limit, reduce = optimizer._clip_gradients, optimizer._all_reduce_sum_gradients  # noqa: SLF001

    def clip_gradients(self: "Any", grads: "Any") -> "Any":
        return grads if is_multi_worker(self._distribution_strategy) else limit(self, grads)

    def all_reduce_sum_gradients(self: "Any", grads_and_vars: "Any") -> "Any":
        reduced = reduce(self, grads_and_vars)
        if not is_multi_worker(self._distribution_strategy):
            return reduced
        grads = limit(self, [grad for grad, _ in reduced])
        return [(grads[at], variable) for at, (_, variable) in enumerate(reduced)]

    optimizer._clip_gradients = clip_gradients  # noqa: SLF001
    optimizer._all_reduce_sum_gradients = all_reduce_sum_gradients  # noqa: SLF001


def divide(losses: "Any") -> None:
    """Divide a scalar loss by the number of replicas, as Keras does with a loss per element."""
    reduce, scale = losses.reduce_values, losses.scale_loss_for_distribution

    def reduce_values(values: "Any", *rest: "Any", **named: "Any") -> "Any":
        loss = reduce(values, *rest, **named)
        how = named.get("reduction", rest[-1] if rest else "mean")  # the last parameter in each version
        if tuple(values.shape) or how in (None, "none", "sum"):
            return loss
        return scale(loss) if is_multi_worker(sys.modules["tensorflow"].distribute.get_strategy()) else loss

    losses.reduce_values = reduce_values


def average(layer: "Any") -> None:
    """Average layers' moving statistics across tasks, as Keras 2 does, and separate losses by replica."""
    add = layer.Layer.add_weight
    if "tensorflow" not in sys.modules:
        return  # the host's keras.json names another backend

    def add_weight(self: "Any", *args: "Any", **named: "Any") -> "Any":
        trained = named.get("trainable", True) or named.get("aggregation") not in (None, "none")
        number = "float" in str(named.get("dtype") or "float")
        if number and not trained and is_multi_worker(sys.modules["tensorflow"].distribute.get_strategy()):
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
    """Keep the moving statistics if a task gets no element of the last batch: the moments would be NaN."""
    layer = normalization.BatchNormalization
    measure = layer._moments  # noqa: SLF001

    def moments(self: "Any", inputs: "Any", mask: "Any") -> "Any":
        tf, measured = sys.modules.get("tensorflow"), measure(self, inputs, mask)
        if self.synchronized or tf is None or not is_multi_worker(tf.distribute.get_strategy()):
            return measured
        some, kept = tf.size(inputs) > 0, (self.moving_mean, self.moving_variance)
        return [tf.where(some, measured[at], tf.cast(old, inputs.dtype)) for at, old in enumerate(kept)]

    layer._moments = moments  # noqa: SLF001


def name_version(keras: "Any") -> None:
    """Give Keras 2 a `__version__`, both in `tf.keras` and in the imported module."""
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

    Data from Python is copied: TensorFlow's kernels reuse their inputs, and wrote into the program's arrays
    (2.21, two workers).
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
    """Yield a data set and each of its inputs, with the names of their operations and type."""
    waiting = [dataset] if hasattr(dataset, "_inputs") else []
    while waiting:
        part = waiting.pop()
        waiting += part._inputs()  # noqa: SLF001
        graphs = [function.function.graph.as_graph_def() for function in part._functions()]  # noqa: SLF001
        nodes = [node.op for graph in graphs for node in graph.node]
        nodes += [node.op for graph in graphs for f in graph.library.function for node in f.node_def]
        yield part, [*nodes, type(part).__name__]


def _files(dataset: "Any") -> int:
    """Return the number of files that a data set reads: the size of its smallest source; 0 for none."""
    parts = list(_parts(dataset))
    if not any(op.startswith(_READERS) for _, names in parts for op in names):
        return 0
    try:
        counts = [int(part.cardinality()) for part, _ in parts if not part._inputs()]  # noqa: SLF001
    except TypeError:
        return 0  # in a tf.function, as with parameter servers, it is unknown
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
