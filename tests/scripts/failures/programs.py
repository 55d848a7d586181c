"""Programs that fail as people's programs do, each a few lines long.

`programs.py FOLDER` runs them with TensorFlow, each in a process forked from one that has imported it, with
what a task would see (no terminal, stdin /dev/null), and keeps what they printed: FOLDER/NAME.txt.
"""

# ruff: noqa: E501 - people's lines

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

PROGRAMS: dict[str, str] = {
    "session": """\
import numpy as np, tensorflow as tf
tf.Session()
""",
    "placeholder": """\
import numpy as np, tensorflow as tf
tf.placeholder('float32')
""",
    "slurm": """\
import numpy as np, tensorflow as tf
tf.distribute.cluster_resolver.SlurmClusterResolver()
""",
    "job_name": """\
import argparse
p = argparse.ArgumentParser(prog='t.py')
p.add_argument('--job_name', required=True)
p.add_argument('--task_index', type=int, required=True)
p.parse_args([])
""",
    "contrib": """\
import numpy as np, tensorflow as tf
tf.contrib.layers
""",
    "estimator": """\
import numpy as np, tensorflow as tf
tf.estimator.RunConfig()
""",
    "run_v2": """\
import numpy as np, tensorflow as tf
tf.distribute.MirroredStrategy().experimental_run_v2(print)
""",
    "old_mwms": """\
import numpy as np, tensorflow as tf
tf.distribute.experimental.MultiWorkerMirroredStrategyV1()
""",
    "make_one_shot": """\
import numpy as np, tensorflow as tf
tf.data.Dataset.range(3).make_one_shot_iterator()
""",
    "global_init": """\
import numpy as np, tensorflow as tf
tf.global_variables_initializer()
""",
    "app_flags": """\
import numpy as np, tensorflow as tf
tf.app.flags
""",
    "logging": """\
import numpy as np, tensorflow as tf
tf.logging.info('x')
""",
    "enable_eager": """\
import numpy as np, tensorflow as tf
tf.enable_eager_execution()
""",
    "lr_argument": """\
import numpy as np, tensorflow as tf
tf.keras.optimizers.Adam(lr=0.1, decay_rate=3)
""",
    "check_nan": """\
import numpy as np, tensorflow as tf
tf.debugging.check_numerics([float('nan')], 'w')
""",
    "check_inf": """\
import numpy as np, tensorflow as tf
tf.debugging.check_numerics([float('inf')], 'w')
""",
    "check_neg": """\
import numpy as np, tensorflow as tf
tf.debugging.check_numerics([-float('inf')], 'w')
""",
    "check_both": """\
import numpy as np, tensorflow as tf
tf.debugging.check_numerics([float('inf'), -float('inf'), float('nan')], 'w')
""",
    "check_two": """\
import numpy as np, tensorflow as tf
tf.debugging.check_numerics([float('inf'), -float('inf')], 'w')
""",
    "parent_data": """\
open('../data/train.csv')
""",
    "own_data": """\
open('data/train.csv')
""",
    "absolute_data": """\
open('/data/train.csv')
""",
    "tf_file": """\
import numpy as np, tensorflow as tf
list(tf.data.TFRecordDataset('/data/x.tfrecord'))
""",
    "no_module": """\
import wandb
""",
    "no_cv": """\
import cv2
""",
    "no_horovod": """\
import tensorflow as tf
import horovod.tensorflow.keras as hvd
""",
    "no_torch": """\
import torch
import torch.distributed as dist
""",
    "no_sub_module": """\
import json.nothing
""",
    "no_name": """\
from math import tau2
""",
    "relative": """\
from . import data
""",
    "is_folder": """\
open('/tmp')
""",
    "stdin": """\
input('Continue? ')
""",
    "plot": """\
import matplotlib.pyplot
""",
    "matmul": """\
import numpy as np, tensorflow as tf
tf.ones((2, 3)) @ tf.ones((2, 3))
""",
    "fit_shapes": """\
import numpy as np, tensorflow as tf
x, y = np.ones((8, 4), 'float32'), np.ones((8, 1), 'float32')
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
m.compile('sgd', 'mse')
m.fit(np.ones((8, 5)), y, verbose=0)
""",
    "labels": """\
import numpy as np, tensorflow as tf
tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[11], logits=[[0.0] * 10])
m = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,))])
m.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(np.ones((8, 4)), np.full((8,), 7), verbose=0)
""",
    "reshape": """\
import numpy as np, tensorflow as tf
tf.reshape(tf.ones(6), (4, 2))
""",
    "dtype": """\
import numpy as np, tensorflow as tf
tf.constant(1) + tf.constant(1.0)
""",
    "not_compiled": """\
import numpy as np, tensorflow as tf
x, y = np.ones((8, 4), 'float32'), np.ones((8, 1), 'float32')
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])

m.fit(x, y, verbose=0)
""",
    "no_data": """\
import numpy as np, tensorflow as tf
x, y = np.ones((8, 4), 'float32'), np.ones((8, 1), 'float32')
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
m.compile('sgd', 'mse')
m.fit(tf.data.Dataset.from_tensor_slices((x, y)).take(0).batch(2), verbose=0)
""",
    "graph_bool": """\
import numpy as np, tensorflow as tf
@tf.function(autograph=False)
def f(x):
    if x > 0: return x
f(tf.constant(1.0))
""",
    "retrace_variable": """\
import numpy as np, tensorflow as tf
@tf.function
def f(x):
    v = tf.Variable(x)
    return v + x
f(1.0)
""",
    "numpy_in_graph": """\
import numpy as np, tensorflow as tf
@tf.function
def f(x):
    return x.numpy()
f(tf.constant(1.0))
""",
    "mixed_scope": """\
import numpy as np, tensorflow as tf
s = tf.distribute.MirroredStrategy(['cpu:0'])
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
with s.scope():
    m.compile('sgd', 'mse')
m.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
""",
    "tpu_no_name": """\
import numpy as np, tensorflow as tf
tf.distribute.cluster_resolver.TPUClusterResolver()
""",
    "late_devices": """\
import numpy as np, tensorflow as tf
tf.ones(1)
tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * 2)
""",
    "no_gpu": """\
import numpy as np, tensorflow as tf
tf.config.set_visible_devices(tf.config.list_physical_devices('GPU')[0])
""",
    "gpu_device": """\
import numpy as np, tensorflow as tf
tf.config.set_soft_device_placement(False)
with tf.device('GPU:0'):
    tf.ones(1) + 1
""",
    "late_strategy": """\
import numpy as np, tensorflow as tf
import os, json
os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['127.0.0.1:1', '127.0.0.1:2']}, 'task': {'type': 'worker', 'index': 0}})
tf.ones(1)
tf.distribute.MultiWorkerMirroredStrategy()
""",
    "bad_task": """\
import numpy as np, tensorflow as tf
import os, json
os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['127.0.0.1:1']}, 'task': {'type': 'worker', 'index': 3}})
tf.distribute.MultiWorkerMirroredStrategy()
""",
    "bad_json": """\
import numpy as np, tensorflow as tf
import os
os.environ['TF_CONFIG'] = "{'cluster': {}}"
tf.distribute.MultiWorkerMirroredStrategy()
""",
    "evaluator": """\
import numpy as np, tensorflow as tf
import os, json
os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['127.0.0.1:1']}, 'task': {'type': 'evaluator', 'index': 0}})
tf.distribute.MultiWorkerMirroredStrategy()
""",
    "no_checkpoint": """\
import numpy as np, tensorflow as tf
x, y = np.ones((8, 4), 'float32'), np.ones((8, 1), 'float32')
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
m.compile('sgd', 'mse')
m.load_weights('nothing.h5')
""",
    "no_model": """\
import numpy as np, tensorflow as tf
tf.keras.models.load_model('nothing.keras')
""",
    "other_weights": """\
import numpy as np, tensorflow as tf
x, y = np.ones((8, 4), 'float32'), np.ones((8, 1), 'float32')
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
m.compile('sgd', 'mse')
m.set_weights([np.ones((3, 1)), np.ones(1)])
""",
    "key": """\
{}['images']
""",
    "zip": """\
import io, zipfile; zipfile.ZipFile(io.BytesIO(b'x'))
""",
    "assertion": """\
assert 2 == 1 + 2, 'shards differ'
""",
    "recursion": """\
def f(): return f()
f()
""",
    "memory": """\
bytearray(10**18)
""",
    "numpy_memory": """\
import numpy as np, tensorflow as tf
np.ones(10**16)
""",
    "exit_words": """\
import sys; sys.exit('usage: train.py DIR')
""",
    "raise_exit": """\
raise SystemExit('no data')
""",
    "argparse": """\
import argparse; p = argparse.ArgumentParser('t.py'); p.add_argument('--data', required=True); p.parse_args([])
""",
    "port": """\
import socket; a = socket.socket(); a.bind(('', 0)); a.listen(); socket.socket().bind(a.getsockname())
""",
    "resolve": """\
import urllib.request; urllib.request.urlopen('http://data.invalid/x.zip')
""",
    "refused": """\
import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/x.zip')
""",
    "tfds": """\
import tensorflow_datasets as tfds; tfds.load('mnist', download=False, data_dir='/nowhere')
""",
    "json": """\
import json; json.loads('{lr: 1}')
""",
    "unicode": """\
b'\\xff'.decode()
""",
    "pickle": """\
import pickle; pickle.dumps(lambda: 1)
""",
    "keras_lr": """\
import numpy as np, tensorflow as tf
x, y = np.ones((8, 4), 'float32'), np.ones((8, 1), 'float32')
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
m.compile(tf.keras.optimizers.SGD(learning_rte=1), 'mse')

""",
    "keras_2_saved": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
m.save('model')
""",
    "keras_2_weights": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
m.save_weights('ckpt/weights')
""",
    "keras_2_callback": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
tf.keras.callbacks.ModelCheckpoint('ckpt/{epoch}', save_weights_only=True)
""",
    "keras_2_whole": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
tf.keras.callbacks.ModelCheckpoint('ckpt/{epoch}')
""",
    "keras_2_optimizer": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
tf.keras.optimizers.legacy.SGD(0.1)
""",
    "keras_2_load": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
tf.keras.models.load_model('/tmp')
""",
    "keras_2_generator": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
m.fit_generator(iter([]))
""",
    "keras_2_shape": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
tf.keras.layers.Dense(1, batch_input_shape=(1, 2))
""",
    "keras_2_tensor": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
tf.reduce_sum(tf.keras.Input((2,)))
""",
    "keras_2_module": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
tf.keras.experimental.SidecarEvaluator
""",
    "flags": """\
from absl import app, flags
flags.DEFINE_float('lr', 0.1, 'rate')
app.run(print, ['train.py', '--learning_rate=1'])
""",
    "flags_required": """\
from absl import app, flags
flags.DEFINE_string('data', None, 'folder')
flags.mark_flag_as_required('data')
app.run(print, ['train.py'])
""",
    "corrupt": """\
import tempfile, numpy as np, tensorflow as tf
path = tempfile.mkdtemp() + '/x.tfrecord'
open(path, 'wb').write(b'0' * 500)
list(tf.data.TFRecordDataset(path))
""",
    "ragged_batch": """\
import numpy as np, tensorflow as tf
rows = tf.data.Dataset.from_generator(lambda: iter([[1.0], [1.0, 2.0]]), output_signature=tf.TensorSpec((None,)))
list(rows.batch(2))
""",
    "custom_class": """\
import tempfile, numpy as np, tensorflow as tf
class Scale(tf.keras.layers.Layer):
    def call(self, x):
        return 2 * x
path = tempfile.mkdtemp() + '/m.h5'
given = tf.keras.Input((3,))
tf.keras.Model(given, Scale()(given)).save(path)
tf.keras.models.load_model(path)
""",
    "custom_class_keras": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import tempfile, numpy as np, tensorflow as tf
class Scale(tf.keras.layers.Layer):
    def call(self, x):
        return 2 * x
path = tempfile.mkdtemp() + '/m.keras'
given = tf.keras.Input((3,))
tf.keras.Model(given, Scale()(given)).save(path)
tf.keras.models.load_model(path)
""",
    "no_keras_file": """\
import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"
import numpy as np, tensorflow as tf
tf.keras.models.load_model('/home/train/best.keras')
""",
    "rows_of_a_generator": """\
import numpy as np, tensorflow as tf
def rows():
    yield 1
    raise ValueError('row 2 has no label')
list(tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((), tf.int32)))
""",
    "pool": """\
from multiprocessing import get_context
with get_context('fork').Pool(1) as pool:
    pool.map({1: 2}.__getitem__, [3])
""",
    "child": """\
import subprocess
subprocess.run(['tar', 'xf', '/data/images.tar'], check=True)
""",
    "child_killed": """\
import subprocess
subprocess.run(['sh', '-c', 'kill -KILL $$'], check=True)
""",
    "broken_pool": """\
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(1, multiprocessing.get_context('fork')) as pool:
    pool.submit(os._exit, 1).result()
""",
    "future": """\
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool:
    list(pool.map(int, ['1', 'two']))
""",
    "disk": """\
open('/dev/full', 'w', buffering=1).write('x\\n')
""",
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    gc.disable()
    import tensorflow as tf  # noqa: F401 - before the forks

    gc.freeze()  # what no collection touches stays shared with those that are forked
    gc.enable()
    for name, source in PROGRAMS.items():
        pid = os.fork()
        if pid == 0:
            _become(folder / f"{name}.txt", source)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(name, status, flush=True)


def _become(output: Path, source: str) -> None:
    os.chdir("/")
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in ((0, null), (1, file), (2, file)):
        os.dup2(fd, number)
    status = 0
    try:
        exec(compile(source, "/home/train/train.py", "exec"), {"__name__": "__main__"})
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
        if not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
