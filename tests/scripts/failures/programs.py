"""Programs that fail as people's programs do, each a few lines long.

`programs.py FOLDER` runs them with TensorFlow, each in a process forked from one that has imported it, with
what a task would see (no terminal, stdin /dev/null), and keeps what they printed: FOLDER/NAME.txt.
"""

# ruff: noqa: E501 - people's lines

import gc
import os
import sys
from pathlib import Path

TF = "import numpy as np, tensorflow as tf\n"
MODEL = f"""\
{TF}x, y = np.ones((8, 4), 'float32'), np.ones((8, 1), 'float32')
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
"""
COMPILED = f"{MODEL}m.compile('sgd', 'mse')\n"
KERAS_3 = f'import os; os.environ["TF_USE_LEGACY_KERAS"] = "0"\n{TF}'
KERAS_3_MODEL = f"{KERAS_3}m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])\n"
PROGRAMS: dict[str, str] = {
    "session": TF + "tf.Session()\n",
    "slurm": TF + "tf.distribute.cluster_resolver.SlurmClusterResolver()\n",
    "job_name": """\
import argparse
p = argparse.ArgumentParser(prog='t.py')
p.add_argument('--job_name', required=True)
p.add_argument('--task_index', type=int, required=True)
p.parse_args([])
""",
    "local_rank": """\
import argparse
p = argparse.ArgumentParser(prog='t.py')
p.add_argument('--local_rank', type=int, required=True)
p.parse_args([])
""",
    "contrib": TF + "tf.contrib.layers\n",
    "estimator": TF + "tf.estimator.RunConfig()\n",
    "estimator_import": "from tensorflow import estimator\n",
    "run_v2": TF + "tf.distribute.MirroredStrategy().experimental_run_v2(print)\n",
    "make_one_shot": TF + "tf.data.Dataset.range(3).make_one_shot_iterator()\n",
    "app_flags": TF + "tf.app.flags\n",
    "logging": TF + "tf.logging.info('x')\n",
    "lr_argument": TF + "tf.keras.optimizers.Adam(lr=0.1, decay_rate=3)\n",
    "check_nan": TF + "tf.debugging.check_numerics([float('nan')], 'w')\n",
    "check_both": TF + "tf.debugging.check_numerics([float('inf'), -float('inf'), float('nan')], 'w')\n",
    "parent_data": "open('../data/train.csv')\n",
    "own_data": "open('data/train.csv')\n",
    "absolute_data": "open('/data/train.csv')\n",
    "tf_file": TF + "list(tf.data.TFRecordDataset('/data/x.tfrecord'))\n",
    "no_module": "import wandb\n",
    "no_cv": "import cv2\n",
    "no_horovod": """\
import tensorflow as tf
import horovod.tensorflow.keras as hvd
""",
    "no_torch": """\
import torch
import torch.distributed as dist
""",
    "no_name": "from math import tau2\n",
    "relative": "from . import data\n",
    "stdin": "input('Continue? ')\n",
    "exported": "get_ipython().run_line_magic('matplotlib', 'inline')\n",
    "matmul": TF + "tf.ones((2, 3)) @ tf.ones((2, 3))\n",
    "fit_shapes": COMPILED + "m.fit(np.ones((8, 5)), y, verbose=0)\n",
    "labels": TF
    + """\
tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[11], logits=[[0.0] * 10])
m = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,))])
m.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(np.ones((8, 4)), np.full((8,), 7), verbose=0)
""",
    "reshape": TF + "tf.reshape(tf.ones(6), (4, 2))\n",
    "dtype": TF + "tf.constant(1) + tf.constant(1.0)\n",
    "not_compiled": MODEL + "m.fit(x, y, verbose=0)\n",
    "no_data": COMPILED + "m.fit(tf.data.Dataset.from_tensor_slices((x, y)).take(0).batch(2), verbose=0)\n",
    "graph_bool": TF
    + """\
@tf.function(autograph=False)
def f(x):
    if x > 0: return x
f(tf.constant(1.0))
""",
    "retrace_variable": TF
    + """\
@tf.function
def f(x):
    v = tf.Variable(x)
    return v + x
f(1.0)
""",
    "numpy_in_graph": TF
    + """\
@tf.function
def f(x):
    return x.numpy()
f(tf.constant(1.0))
""",
    "mixed_scope": TF
    + """\
s = tf.distribute.MirroredStrategy(['cpu:0'])
m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
with s.scope():
    m.compile('sgd', 'mse')
m.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
""",
    "tpu_no_name": TF + "tf.distribute.cluster_resolver.TPUClusterResolver()\n",
    "late_devices": TF
    + """\
tf.ones(1)
tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * 2)
""",
    "gpu_device": TF
    + """\
tf.config.set_soft_device_placement(False)
with tf.device('GPU:0'):
    tf.ones(1) + 1
""",
    "late_strategy": TF
    + """\
import os, json
os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['127.0.0.1:1', '127.0.0.1:2']}, 'task': {'type': 'worker', 'index': 0}})
tf.ones(1)
tf.distribute.MultiWorkerMirroredStrategy()
""",
    "bad_task": TF
    + """\
import os, json
os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['127.0.0.1:1']}, 'task': {'type': 'worker', 'index': 3}})
tf.distribute.MultiWorkerMirroredStrategy()
""",
    "evaluator": TF
    + """\
import os, json
os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['127.0.0.1:1']}, 'task': {'type': 'evaluator', 'index': 0}})
tf.distribute.MultiWorkerMirroredStrategy()
""",
    "no_checkpoint": COMPILED + "m.load_weights('nothing.h5')\n",
    "no_model": TF + "tf.keras.models.load_model('nothing.keras')\n",
    "other_weights": COMPILED + "m.set_weights([np.ones((3, 1)), np.ones(1)])\n",
    "assertion": "assert 2 == 1 + 2, 'shards differ'\n",
    "recursion": """\
def f(): return f()
f()
""",
    "memory": "bytearray(10**18)\n",
    "numpy_memory": TF + "np.ones(10**16)\n",
    "exit_words": "import sys; sys.exit('usage: train.py DIR')\n",
    "argparse": "import argparse; p = argparse.ArgumentParser('t.py'); p.add_argument('--data', required=True); p.parse_args([])\n",
    "port": "import socket; a = socket.socket(); a.bind(('', 0)); a.listen(); socket.socket().bind(a.getsockname())\n",
    "resolve": "import urllib.request; urllib.request.urlopen('http://data.invalid/x.zip')\n",
    "tfds": "import tensorflow_datasets as tfds; tfds.load('mnist', download=False, data_dir='/nowhere')\n",
    "keras_2_saved": KERAS_3_MODEL + "m.save('model')\n",
    "keras_2_weights": KERAS_3_MODEL + "m.save_weights('ckpt/weights')\n",
    "keras_2_whole": KERAS_3_MODEL + "tf.keras.callbacks.ModelCheckpoint('ckpt/{epoch}')\n",
    "keras_2_optimizer": KERAS_3_MODEL + "tf.keras.optimizers.legacy.SGD(0.1)\n",
    "keras_2_load": KERAS_3_MODEL + "tf.keras.models.load_model('/tmp')\n",
    "keras_2_generator": KERAS_3_MODEL + "m.fit_generator(iter([]))\n",
    "keras_2_shape": KERAS_3_MODEL + "tf.keras.layers.Dense(1, batch_input_shape=(1, 2))\n",
    "keras_2_tensor": KERAS_3_MODEL + "tf.reduce_sum(tf.keras.Input((2,)))\n",
    "keras_2_module": KERAS_3_MODEL + "tf.keras.experimental.SidecarEvaluator\n",
    "flags": """\
from absl import app, flags
flags.DEFINE_float('lr', 0.1, 'rate')
app.run(print, ['train.py', '--learning_rate=1'])
""",
    "corrupt": """\
import tempfile, numpy as np, tensorflow as tf
path = tempfile.mkdtemp() + '/x.tfrecord'
open(path, 'wb').write(b'0' * 500)
list(tf.data.TFRecordDataset(path))
""",
    "ragged_batch": TF
    + """\
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
    "no_keras_file": KERAS_3 + "tf.keras.models.load_model('/home/train/best.keras')\n",
    "rows_of_a_generator": TF
    + """\
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
    "no_program": "import subprocess; subprocess.run(['ffmpeg-x', '-i', 'a.mp4'], check=True)\n",
    "no_program_in_shell": "import subprocess; subprocess.run('ffmpeg-x a.mp4', shell=True, check=True)\n",
    "not_executable": "import subprocess; subprocess.run(['/etc/passwd'], check=True)\n",
    "gone_folder": """\
import os, tempfile
folder = tempfile.mkdtemp()
os.chdir(folder); os.rmdir(folder); os.getcwd()
""",
    "rename_race": "import os; os.rename('model.tmp', 'model.keras')\n",
    "folder_race": "import os; os.makedirs('/usr')\n",
    "rank_variable": "import os; rank = int(os.environ['PMI_RANK'])\n",
    "own_port": "import asyncio, socket; a = socket.create_server(('127.0.0.1', 0)); asyncio.run(asyncio.start_server(print, *a.getsockname()))\n",
    "tf_examples": TF + "from tensorflow.examples.tutorials.mnist import input_data\n",
    "keras_2_argument": KERAS_3_MODEL
    + "m.optimizer = tf.keras.optimizers.SGD(); m.optimizer.apply_gradients([], skip_gradients_aggregation=True)\n",
    "py_function": TF
    + """\
def label(number):
    raise KeyError(f'label of image {int(number)} is missing')
list(tf.data.Dataset.range(4).map(lambda n: tf.py_function(label, [n], tf.int64)))
""",
    "py_function_in_fit": COMPILED
    + """\
def label(number):
    return open(f'labels/{int(number)}.txt').read()
def row(n):
    return tf.ones(4), tf.ensure_shape(tf.numpy_function(label, [n], tf.float32), ())
m.fit(tf.data.Dataset.range(8).map(row).batch(2), verbose=0)
""",
    "generator_in_fit": COMPILED
    + """\
def rows():
    yield np.ones(4, 'f'), np.float32(1)
    raise ValueError('row 2 has no label')
m.fit(tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec(4), tf.TensorSpec(()))).batch(2), verbose=0)
""",
    "forked_child": """\
import multiprocessing
def work():
    raise ValueError('row 3 has no label')
child = multiprocessing.get_context('fork').Process(target=work)
child.start(); child.join(); raise SystemExit(child.exitcode)
""",
    "feeder": """\
import queue, threading
batches = queue.Queue()
def feed():
    raise ValueError('row 3 has no label')
thread = threading.Thread(target=feed); thread.start(); thread.join()
batches.get(timeout=0.1)
""",
    "disk": "open('/dev/full', 'w', buffering=1).write('x\\n')\n",
    "file_limit": """
import resource, tempfile
resource.setrlimit(resource.RLIMIT_FSIZE, (99_999, 99_999))
tempfile.TemporaryFile().write(bytes(1_000_000))
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
