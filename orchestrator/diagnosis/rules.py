"""What TensorFlow's last words mean: one table, from the special to the general. Pure.

Written from what TensorFlow 2.21 printed when it was made to fail in each of these ways; the texts are in
tests/unit/tails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.events import FailureKind


@dataclass(frozen=True)
class Rule:
    kind: FailureKind
    pattern: re.Pattern[str]
    advice: str  # what to try


def _rule(pattern: str, advice: str, kind: FailureKind = FailureKind.EXCEPTION) -> Rule:
    return Rule(kind, re.compile(pattern), advice)


# What cannot be imported -> the package that brings it, where that has another name.
_OTHERWISE_NAMED = {
    r"No module named '?cv2|libGL\.so": "opencv-python-headless",
    r"No module named '?sklearn\b": "scikit-learn",
    r"No module named '?skimage\b": "scikit-image",
    r"No module named '?PIL\b|Could not import PIL": "pillow",
    r"No module named '?yaml\b": "pyyaml",
}

# The first that matches holds.
RULES: tuple[Rule, ...] = (
    _rule(
        r"PerReplica.*unsupported type|unsupported type.*PerReplica",
        "remove `repair_keras = false`: orchestrate then repairs `fit` of Keras 3",
    ),
    _rule(
        r"unsupported operand type\(s\) for /: 'Dataset' and 'int'",
        "set `legacy_keras = false` under [job]: the weights are Keras 3's, and the task had tf_keras",
    ),
    _rule(
        r"Could not apply FILE based sharding|not enough for the required \d+ shards",
        'set `auto_shard = "data"` under [job], or AutoShardPolicy.DATA or OFF in the program, or write the'
        " data in at least as many files as tasks",
        FailureKind.MISMATCH,
    ),
    _rule(
        r"aren't enough elements|\(Empty logs\)|Expected input data to be non-empty|input ran out of data",
        'give each task data: smaller batches, `repeat()`, or `auto_shard = "data"` under [job] where there'
        " are fewer files than tasks",
        FailureKind.MISMATCH,
    ),
    # Names that TensorFlow no longer has
    _rule(
        r"no attribute 'contrib'",
        "rewrite that line: tf.contrib is no longer part of TensorFlow; its parts are in tf, tfa or gone",
    ),
    _rule(
        r"no attribute '(?:estimator|feature_column)'",
        "use Keras, or install TensorFlow 2.15 or older: 2.16 has no tf.estimator",
    ),
    _rule(
        r"no attribute 'experimental_run_v2'",
        "write `strategy.run` for experimental_run_v2: it is the same under today's name",
    ),
    _rule(
        r"no attribute 'experimental_make_numpy_dataset'|no attribute 'make_dataset_iterator'",
        "write `strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(...))`",
    ),
    _rule(
        r"no attribute '(?:make_one_shot_iterator|make_initializable_iterator)'",
        "write `iter(dataset)`, or `tf.compat.v1.data.make_one_shot_iterator(dataset)`",
    ),
    _rule(
        r"module 'tensorflow' has no attribute '(?:app|flags)'",
        "write `from absl import app, flags` in place of tf.app and tf.flags",
    ),
    _rule(
        r"module 'tensorflow' has no attribute 'logging'",
        "write `tf.get_logger()`, or `tf.compat.v1.logging`",
    ),
    _rule(
        r"module 'tensorflow' has no attribute '(?:Session|placeholder|global_variables_initializer|layers"
        r"|ConfigProto|InteractiveSession|get_default_graph|reset_default_graph|enable_eager_execution|train_"
        r"|set_random_seed|get_variable|variable_scope|to_float|log|py_func|gfile|global_variables)'",
        "write `import tensorflow.compat.v1 as tf` (tf.compat.v1.Session and so on): it is of TensorFlow 1",
    ),
    _rule(
        r"not a valid argument, kwargs should be empty|Argument\(s\) not recognized",
        "correct that argument: today's Keras calls lr learning_rate, and takes decay as a schedule",
    ),
    _rule(
        r"Invalid filepath extension for saving|must end in `\.(?:weights\.h5|keras)`"
        r"|not supported in Keras 3|Keras 3 only supports|passed to \w+: \{'batch_input_shape'"
        r"|no attribute '(?:fit|predict)_generator'"
        r"|module 'keras[\w.]*' has no attribute '(?:experimental|premade_models|estimator)'"
        r"|no attribute 'reset_states'|dtype='string' is not a valid dtype"
        r"|A KerasTensor cannot be used as input to a TensorFlow function",
        "use Keras 2 (`from tensorflow import keras`, no `legacy_keras = false`): it is written for"
        " that, and met Keras 3; or do as the message says",
    ),
    _rule(
        r"module 'tf_keras[\w.]*' has no attribute|cannot import name '\w+' from 'tf_keras",
        "set `legacy_keras = false` under [job]: the program is written for Keras 3, and met Keras 2",
    ),
    # Modules and files
    _rule(
        r"No module named '?tf_keras",
        "add tf-keras to `packages` under [env], or install it for the `python` of that host, in the version"
        " of TensorFlow",
    ),
    *(
        _rule(
            pattern,
            f"add {package} to `packages` under [env], or install it for the `python` of that host",
        )
        for pattern, package in _OTHERWISE_NAMED.items()
    ),
    _rule(
        r"No module named '?horovod",
        "make a `tf.distribute.MultiWorkerMirroredStrategy()` in place of hvd, or start the program with"
        " horovodrun alone: orchestrate does not start what Horovod needs (docs/comparison.md)",
    ),
    _rule(
        r"No module named '?torch\b",
        "add torch to `packages` under [env] where a TensorFlow program uses it; a program that trains with"
        " PyTorch is for torchrun (docs/comparison.md)",
    ),
    _rule(
        r"attempted relative import",
        "start it as a module, `orchestrate launch -- python -m package.module`, from the folder above it",
    ),
    _rule(
        r"No module named",
        "add its package to `packages` under [env] (docs/setup.md#packages), or install it for the `python`"
        " of that host; a folder of your own code is found by `python -m`, or with PYTHONPATH under"
        " [job.env]",
    ),
    _rule(
        r"cannot import name",
        "compare the versions: that host's package is another one than the program was written for",
    ),
    _rule(
        r"No such file or directory: b?['\"]\.\./",
        "launch from a folder above, or choose one with --code: the path leads outside of what is sent",
    ),
    _rule(
        r"Permission denied: ",
        "choose a folder that the login may write on that host, such as one in the run's own folder",
    ),
    _rule(
        r"could not find data in|DatasetNotFoundError|Failed to construct dataset",
        "prepare the data once and name their folder with data_dir, which must be there on every host",
    ),
    _rule(
        r"URL fetch failure|Failed to get url|urlopen error|NameResolutionError|Max retries exceeded"
        r"|Failed to resolve|ConnectTimeout",
        "put the data on the hosts beforehand ([data] in hosts.toml does it): this host could not reach the"
        " server",
    ),
    _rule(
        r"_temp/part-\S+ (?:did not exist|not found)|\S+_temp; No such file or directory",
        "choose a folder that all hosts share to save in: with parameter servers each task writes a part",
    ),
    _rule(
        r"(?:unable to|Unable to synchronously) open file|No file or directory found at"
        r"|Unsuccessful TensorSliceReader|Failed to find any matching files|File not found: filepath=",
        "check what load_weights or load_model is given: a file of an earlier run has to be on every host",
    ),
    _rule(
        r"No such file or directory: b?['\"]/|NotFoundError:? .*/\S+; No such file",
        "put that file on every host, or send it: name it relative to the folder of your code",
    ),
    _rule(
        r"FileNotFoundError.*No such file or directory",
        "check that it is sent: what git or `ignore` leaves out stays here; to write there, make the folder"
        " in the program, as an empty folder is not sent",
    ),
    _rule(
        r"EOF when reading a line",
        "give the answer as an option: a task has no terminal, and its stdin is /dev/null",
    ),
    _rule(
        r"are required: .*--(?:job_name|task_(?:index|id|type)|worker_index|node_rank|rank|\w+_hosts)\b",
        "read in the program who the task is: `tf.distribute.cluster_resolver.TFConfigClusterResolver()`"
        " knows task_type, task_id and cluster_spec()",
        FailureKind.EXIT,
    ),
    _rule(
        r"SLURM_\w+ not found in environment",
        "leave SlurmClusterResolver out: MultiWorkerMirroredStrategy() reads the TF_CONFIG of the task",
    ),
    _rule(
        r"error: the following arguments are required|error: unrecognized arguments|error: argument "
        r"|error: worker_entry has no option|Flags parsing error: ",
        "give the program its own options after `--`, orchestrate's own before it:"
        " `orchestrate launch --name first -- train.py --data DIR`",
        FailureKind.EXIT,
    ),
    # Strategies and devices
    _rule(
        r"must be configured at program startup|Collective ops must be configured",
        "make the strategy first: nothing of TensorFlow may compute before it",
    ),
    _rule(
        r"cannot be modified after being initialized|Physical devices cannot be modified",
        "configure devices in the first lines of the program, before TensorFlow computes anything",
    ),
    _rule(
        r"was not created in the distribution strategy scope|not created under the distribution strategy"
        r"|Mixing different tf\.distribute\.Strategy|created in the same distribution strategy scope",
        "make the model, each of its layers, its optimizer and its metrics inside `with strategy.scope():`",
    ),
    _rule(
        r"(?:assign\w*`?|apply_gradients\W*) .*in (?:a )?cross-replica|called in cross-replica context",
        "write that inside of the function that `strategy.run` calls: each replica updates its own part",
    ),
    _rule(
        r"Please use `tf\.keras\.losses\.Reduction\.(?:SUM|NONE)`",
        "write `reduction='none'` for the loss, and `tf.nn.compute_average_loss(..., global_batch_size=...)`",
    ),
    _rule(
        r"exceeds the maximum id of|`?task_type`? .*not in cluster|TF_CONFIG",
        "leave TF_CONFIG alone in the program: orchestrate sets it for each task",
    ),
    _rule(
        r"Could not satisfy device specification|unknown device|available devices are|Cannot assign a device",
        "choose devices that this host has: `orchestrate preflight` shows its GPU, or the lack of one",
    ),
    _rule(
        r"pass this dataset to ClusterCoordinator|create_per_worker_dataset",
        "remove `legacy_keras = false`: with parameter servers `fit` needs tf_keras; or use DatasetCreator",
    ),
    _rule(
        r"Could not start gRPC server|Address already in use",
        "`orchestrate preflight` names who holds its port; or change `task_port` in hosts.toml",
        FailureKind.PORT,
    ),
    _rule(
        r"Shape mismatch in the collective|expected type \d+ and data_type",
        "make model, batch size, data and steps_per_epoch equal on all tasks: they do not do the same",
        FailureKind.MISMATCH,
    ),
    _rule(
        r"that group has size",
        "leave TF_CONFIG alone in the program: the tasks disagree about the cluster",
        FailureKind.MISMATCH,
    ),
    # Values
    _rule(
        r"Detected Infinity or NaN|Tensor had (?:[-+]?Inf|NaN)|had (?:Inf and )?NaN values|had Inf values"
        r"|Invalid loss, terminating|the (?:test )?loss is [-+]?(?:nan|inf)",
        "lower the learning rate, clip gradients, check the data: a value became NaN or infinite",
        FailureKind.NAN,
    ),
    _rule(
        r"corrupted record at|truncated record at",
        "write or copy that file again: it is not a TFRecord file, or is cut off, or is compressed and"
        " `compression_type` was not given",
    ),
    _rule(
        r"Cannot batch tensors with different shapes|Cannot add tensor to the batch",
        "write `padded_batch`, or bring the elements to one shape before `batch`",
    ),
    _rule(
        r"Could not locate class|Unknown layer: |Unknown (?:loss|metric|optimizer|object): ",
        "give that class to `load_model(..., custom_objects={...})`, or register it with"
        " `@keras.saving.register_keras_serializable()` before it is saved",
    ),
    _rule(
        r"label value of -?\d+ which is outside the valid range",
        "check the labels: they must lie in 0 to classes - 1, as many as the last layer has outputs",
    ),
    _rule(
        r"Matrix size-incompatible|Input to reshape is a tensor|incompatible with the layer"
        r"|Incompatible shapes|Shapes .* are incompatible|Dimensions must be equal"
        r"|not compatible with provided weight shape",
        "compare the shapes of the data with what the model expects, where the traceback points",
    ),
    _rule(
        r"was expected to be a \w+ tensor but is a",
        "convert one of the two with `tf.cast`",
    ),
    _rule(
        r"[Yy]ou must (?:call `)?compile",
        "call `model.compile(...)` before fit, inside `strategy.scope()`",
    ),
    _rule(
        r"as a Python `?bool`? is not allowed",
        "write `tf.cond` or `tf.where`, or let autograph convert the function",
    ),
    _rule(
        r"only supports singleton tf\.Variables",
        "make variables once, outside of the tf.function",
    ),
    _rule(
        r"SymbolicTensor' object has no attribute 'numpy'|Tensor' object has no attribute 'numpy'",
        "call .numpy() outside of the tf.function, or print with `tf.print`",
    ),
    _rule(
        r"ResourceExhausted|RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating",
        "use a smaller batch or model, or free the memory of that device",
        FailureKind.RESOURCES,
    ),
    _rule(
        r"MemoryError|Cannot allocate memory|bad_alloc",
        "use a smaller batch, or a machine with more memory",
        FailureKind.OUT_OF_MEMORY,
    ),
    _rule(
        r"died with <Signals\.SIGKILL|BrokenProcessPool",
        "run `dmesg -T | grep -i oom` on that host: `kill -9` or the kernel's out-of-memory killer ended a"
        " process that the program started",
    ),
    _rule(
        r"No space left on device|Disk quota exceeded",
        "free space on that host, or set another `workdir` in hosts.toml",
        FailureKind.DISK,
    ),
    _rule(
        r"unable to lock file|BlockingIOError",
        "give each task its own path for what it writes, and keep only the chief's",
    ),
    _rule(
        r"TPUs? not found|TPU Name",
        "choose a strategy for the hosts' devices: this program wants a TPU",
    ),
    _rule(
        r"KeyError: 'evaluator'",
        "make no MultiWorkerMirroredStrategy in the evaluator: it stands outside of the cluster",
    ),
    _rule(
        r"there is no package called .(?:tensorflow|keras3?|tfdatasets|tfds)\b",
        'write `library(reticulate); tf <- import("tensorflow", convert = FALSE)` instead: docs/r.md shows'
        " the way, which needs no other package of R",
    ),
    _rule(
        r"there is no package called .(?:reticulate|jsonlite)\b",
        "`apt install r-cran-reticulate r-cran-jsonlite` on that host",
    ),
    _rule(
        r"Cannot convert \d+\.0 to EagerTensor of dtype int",
        "write whole numbers as such, for `epochs` and the like: `3L` in R, where 3 is 3.0, and 3 in Python",
    ),
    _rule(
        r"non-numeric argument to binary operator",
        "write `x$`__truediv__`(y)` or `tf$add(x, y)`: R's own operators do not work on tensors",
    ),
    _rule(
        r"there is no package called",
        "install that package for the R of that host: `Rscript -e 'install.packages(...)'`",
    ),
    _rule(
        r"incarnation",
        "`orchestrate stop`, then launch: a task was started again alone, and the whole run has to be",
        FailureKind.INCARNATION,
    ),
    _rule(
        r"Barrier timed out|DeadlineExceededError"
        r"|while calling /tensorflow\.CoordinationService/RegisterTask",
        "read the end of the log of the task that is named: it hung on its way to the others, or never began",
        FailureKind.TIMEOUT,
    ),
    _rule(
        r"(?i)socket closed|connection reset|connection refused|broken pipe"
        r"|failed to connect to all addresses|stopped sending heartbeats|heartbeat timeout"
        r"|error received from peer|from remote target /job:|error reported from /job:"
        r"|UnavailableError|AbortedError|CancelledError|coordination service agent",
        "",
        FailureKind.PEER,
    ),
)

# A server that could not start, by whose port it wanted.
PORT_OF_ANOTHER = _rule(
    r"Could not start gRPC server",
    "let workers and ps make a tf.distribute.Server and join() it, only the chief a ParameterServerStrategy:"
    " a task took another one's port",
    FailureKind.PORT,
)
PORT_OF_NOBODY = _rule(
    r"Could not start gRPC server",
    "leave TF_CONFIG alone in the program: the port that this task wanted does not belong to this run",
    FailureKind.PORT,
)

# A peer that answers is alive: gRPC's INVALID_ARGUMENT, NOT_FOUND, INTERNAL and their like tell of what it
# was asked for. UNAVAILABLE (14), DEADLINE_EXCEEDED (4), CANCELLED (1) and ABORTED (10) tell of the peer.
_ANSWER = re.compile(r"grpc_status:(?:3|5|6|7|9|11|12|13)\b")
_GONE = re.compile(r"grpc_status:(?:1|4|10|14)\b|(?i:socket closed|connection re(?:set|fused)|heartbeat)")
_ELSEWHERE = re.compile(r"urlopen error|urllib3|requests\.exceptions|HTTPError|URL fetch failure")

# Words about another task: whoever ends with them may only suffer from what happened to that one.
OF_A_PEER = frozenset({FailureKind.PEER, FailureKind.TIMEOUT, FailureKind.INCARNATION})


def classify(lines: Sequence[str]) -> Rule | None:
    """The rule for these last words; None when they say nothing that we know."""
    said = "\n".join(lines)
    return next((rule for rule in RULES if rule.pattern.search(said)), None)


def blames_peer(lines: Sequence[str]) -> bool:
    """Whether any of these words is about another task, whatever else they say.

    A server that a program of its own asked for something is no task.
    """
    if any(_ELSEWHERE.search(line) for line in lines[:1]):
        return False
    if any(map(_ANSWER.search, lines)) and not any(map(_GONE.search, lines)):
        return False
    return any(rule.pattern.search(line) for rule in RULES if rule.kind in OF_A_PEER for line in lines)
