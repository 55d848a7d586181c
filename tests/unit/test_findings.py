"""What is read from a program before it is sent: each code said where it is true, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator import findings
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.launching import program
from orchestrator.model import AutoShard, Host, Inventory, Job, Role
from orchestrator.planning import plan
from orchestrator.program import sources
from orchestrator.program.project import Code
from tests.scripts.corpus import ALL

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/scripts/programs"
HEAD = "import os\nimport numpy as np\nimport tensorflow as tf\nimport tensorflow_datasets as tfds\n"
MADE = "strategy = tf.distribute.MultiWorkerMirroredStrategy()\nwith strategy.scope():\n    model = build()\n"
WORKERS = (Role.WORKER,) * 4
SERVED = (Role.CHIEF, Role.WORKER, Role.PS)


@dataclass(frozen=True)
class Told:
    """A program, and what is found in it: the code, and words of the sentence."""

    text: str
    code: str = ""
    words: str = ""
    roles: tuple[Role, ...] = WORKERS
    job: Job = field(default_factory=Job)
    env: tuple[tuple[str, str], ...] = ()
    tasks: int = 1  # of each host
    port: int = 2222
    installs: tuple[str, ...] | None = None
    apart: bool = False


def scene(told: Told) -> findings.Scene:
    hosts = tuple(
        Host(f"h{n}", f"h{n}", f"h{n}", role=role, tasks=told.tasks, task_port=told.port)
        for n, role in enumerate(told.roles)
    )
    planned = plan.assign(
        Inventory(hosts, job=told.job),
        command=("train.py",),
        env=dict(told.env),
        name="",
        run="r",
        owner="o",
        created=0.0,
        environ={},
        sources=(told.text,),
    )
    source = SourceFile("train.py", HEAD + told.text)
    files = {
        "sets/rows/1.0.0/dataset_info.json": (PROGRAMS / "sets/rows/1.0.0/dataset_info.json").read_text()
    }
    return findings.Scene(
        planned,
        (source,),
        files.get,
        files.keys(),
        sharded=told.job.auto_shard is AutoShard.DATA,
        installs=told.installs,
        apart=told.apart,
    )


ENV = "os.environ['TF_CONFIG'] = '{}'\n"
LEGACY = "os.environ['TF_USE_LEGACY_KERAS'] = '0'\n"
THEN = "\nmodel.fit(x)"
FIT = "model.fit(data.batch(50), epochs=2)"
SAVE = "model.fit(x)\nmodel.save('model.h5')"
SHARD = Job(auto_shard=AutoShard.DATA)
BACKUP = MADE + "model.fit(x, callbacks=[tf.keras.callbacks.BackupAndRestore('saved')])"
AGAIN = Job(max_restarts=3)

SAID = {
    "TF_CONFIG written": Told(ENV, "O101", "replaces the TF_CONFIG"),
    "TF_CONFIG in main": Told(f"def main():\n    {ENV}\nif __name__ == '__main__':\n    main()", "O101"),
    "TF_CONFIG by update": Told("os.environ.update({'TF_CONFIG': x})", "O101"),
    "TF_CONFIG joined": Told("os.environ |= {'A': '1', 'TF_CONFIG': x}", "O101"),
    "TF_CONFIG by update and a word": Told("os.environ.update({'A': '1'}, TF_CONFIG=x)", "O101"),
    "environ by its own name": Told("from os import environ\nenviron['TF_CONFIG'] = x", "O101"),
    "TF_CONFIG written and read": Told(
        "c = {}\nos.environ['TF_CONFIG'] = json.dumps(c)\nc = json.loads(os.environ['TF_CONFIG'])", "O101"
    ),
    "TF_CONFIG by a name": Told("KEY = 'TF_CONFIG'\nos.environ[KEY] = x", "O101"),
    "TF_CONFIG of hydra's main": Told(
        f"@hydra.main(config_path='conf')\ndef main(cfg):\n    {ENV}main()", "O101"
    ),
    "TF_CONFIG by fire": Told(f"def train(lr):\n    {ENV}fire.Fire(train)", "O101"),
    "TF_CONFIG by app.run": Told(f"def main(_):\n    {ENV}tf.compat.v1.app.run()", "O101"),
    "TF_CONFIG in try": Told(f"try:\n    {ENV}finally:\n    pass", "O101"),
    "TF_CONFIG taken away": Told("os.environ.pop('TF_CONFIG', None)", "O101", "each of the 4 workers"),
    "TF_CONFIG deleted": Told("del os.environ['TF_CONFIG']", "O101", "removes TF_CONFIG"),
    "Keras 3 on several tasks": Told(LEGACY + MADE + THEN, "O102", "turns off TF_USE_LEGACY_KERAS"),
    "another word for off": Told(LEGACY.replace("'0'", "'no'") + MADE + THEN, "O102"),
    "Keras 2 taken away": Told("os.environ.pop('TF_USE_LEGACY_KERAS', None)\n" + MADE + THEN, "O102"),
    "Keras 3 with servers": Told(LEGACY + THEN, "O102", roles=SERVED),
    "a tensor first": Told("x = tf.constant(1)\n" + MADE, "O103", "tensorflow.constant computes"),
    "a data set first": Told("d = tf.data.Dataset.range(3).batch(4)\n" + MADE, "O103"),
    "an argument's tensor first": Told("d = f(tf.cast(y, tf.int64))\n" + MADE, "O103"),
    "a function's tensor first": Told("def load():\n    return tf.zeros(3)\nx = load()\n" + MADE, "O103"),
    "a tensor before one worker's": Told("x = tf.ones(1)\n" + MADE, "O103", roles=(Role.WORKER,)),
    "an optimizer first": Told("o = tf.keras.optimizers.Adam(1e-3)\n" + MADE, "O103", "optimizers.Adam"),
    "a metric of Keras 3 first": Told("import keras\nm = keras.metrics.Mean()\n" + MADE, "O103"),
    "a network first": Told(
        "from tensorflow.keras import applications\nm = applications.ResNet50()\n" + MADE, "O103"
    ),
    "a tensor of another name first": Told(
        "import tensorflow.compat.v2 as tf2\nx = tf2.constant(1)\n" + MADE, "O103"
    ),
    "a Sequential that knows its input first": Told(
        "m = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])\n" + MADE,
        "O103",
        "keras.Sequential computes",
    ),
    "a Sequential with a shape first": Told(
        "from tensorflow.keras import layers, models\n"
        "m = models.Sequential([layers.Flatten(input_shape=(2, 2)), layers.Dense(1)])\n" + MADE,
        "O103",
    ),
    "a layer that is called first": Told(
        "from tensorflow import keras\nx = keras.Input((4,))\ny = keras.layers.Dense(1)(x)\n" + MADE,
        "O103",
        "layers.Dense computes",
    ),
    "a vocabulary first": Told("v = tf.keras.layers.StringLookup()\n" + MADE, "O103"),
    "tfds first": Told("d = tfds.load(name, split='train')\n" + MADE, "O103"),
    "a batch of fit": Told(
        MADE + "BATCH = 10\nmodel.fit(x, y, batch_size=BATCH)", "O104", "a batch of 10 is"
    ),
    "a batch of a data set": Told(MADE + FIT, "O104", "50"),
    "a batch by its name": Told(MADE + "d = data.batch(6).repeat()\nmodel.fit(d)", "O104"),
    "a batch in a function": Told(MADE + f"def train():\n    {FIT}\nprint(train)", "O104"),
    "a batch in a function that its name may call": Told(
        MADE + f"import fire\ndef train():\n    {FIT}\nfire.Fire()", "O104"
    ),
    "a batch of a loop": Told(MADE + "d = strategy.experimental_distribute_dataset(d0.batch(2 * 3))", "O104"),
    "a backup of the chief alone": Told(BACKUP, "O110", "worker/0 alone keeps saved", job=AGAIN, apart=True),
    "one file for two tasks of a host": Told(MADE + SAVE, "O105", "all tasks write model.h5", tasks=2),
    "a checkpoint of Keras 3": Told(
        "import keras\n" + MADE + "c = keras.callbacks.ModelCheckpoint('best.keras')", "O105", tasks=2
    ),
    "a strategy of one machine": Told(
        "s = tf.distribute.MirroredStrategy()\nwith s.scope():\n    model = tf.keras.Sequential()" + THEN,
        "O109",
        "MirroredStrategy joins the devices of one machine: each of the 4 workers trains a model of its own",
    ),
    "no strategy": Told("from tensorflow import keras\nmodel = build()" + THEN, "O109", "nothing joins"),
    "no strategy in a loop of its own": Told(
        "def step(x):\n    with tf.GradientTape() as tape:\n        pass\n", "O109"
    ),
    "a checkpoint's manager": Told(
        MADE + "c = tf.train.Checkpoint(m=model)\nm = tf.train.CheckpointManager(c, 'saved', 3)\n"
        "for epoch in range(3):\n    train()\n    m.save()",
        "O105",
        "all tasks write saved",
        tasks=2,
    ),
    "mnist": Told(
        MADE + THEN + "\ntfds.load('mnist', split='train')", "O106", 'tfds.load("mnist") are one file'
    ),
    "mnist by name": Told(MADE + THEN + "\ntfds.load(name='mnist:3.0.1')", "O106"),
    "mnist that is looked at": Told(
        MADE + "d = tfds.load('mnist')\nfor x in d.take(1):\n    print(x)\nmodel.fit(d)", "O106"
    ),
    "mnist in a loop": Told(
        MADE + "d = strategy.experimental_distribute_dataset(tfds.load('mnist'))\nfor x in d:\n    step(x)",
        "O106",
    ),
    "mnist by a builder": Told(MADE + THEN + "\nb = tfds.builder('mnist')\nd = b.as_dataset()", "O106"),
    "a set of two files": Told(
        MADE + THEN + "\ntfds.load('rows', data_dir='sets')", "O106", "are 2 files, which 4"
    ),
    "one file of records": Told(
        MADE + THEN + '\ntf.data.TFRecordDataset(["x"])', "O106", 'Dataset(["x"]) are one file'
    ),
    "two files of records": Told(MADE + THEN + '\ntf.data.TFRecordDataset(["x", "y"])', "O106", "2 files"),
    "servers without servers": Told(
        "s = tf.distribute.ParameterServerStrategy(r)", "O107", "only the chief may", roles=SERVED
    ),
    "a strategy for nothing": Told(
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\nprint(strategy.num_replicas_in_sync)\nfit()",
        "O108",
        "nothing uses the strategy `strategy`",
    ),
    "a strategy of a word": Told(
        "# no scope here\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\nmodel.fit(x)", "O108"
    ),
    "a proxy": Told("", "O301", "http://proxy leads all tasks", env=(("grpc_proxy", "http://proxy"),)),
    "a proxy of the job": Told("", "O301", job=Job(env={"grpc_proxy": "http://p"})),
    "an [env] of its own": Told("", "O303", "`packages` replaces the default list", installs=("pandas",)),
    "a port": Told("", "O302", "task port 40000 of h0", port=40000),
}

NOT_SAID = {
    "TF_CONFIG kept by a return": Told(
        f"def own():\n    if 'TF_CONFIG' in os.environ:\n        return\n    {ENV}own()"
    ),
    "TF_CONFIG kept by a return in try": Told(
        "def own():\n    try:\n        return os.environ['TF_CONFIG']\n"
        f"    except KeyError:\n        pass\n    {ENV}x = own()\n"
    ),
    "TF_CONFIG kept by an exit": Told(f"if 'TF_CONFIG' in os.environ:\n    sys.exit(train())\n{ENV}"),
    "TF_CONFIG of its own value": Told("os.environ['TF_CONFIG'] = os.environ.get('TF_CONFIG', '{}')"),
    "TF_CONFIG amended": Told(
        "c = json.loads(os.environ['TF_CONFIG'])\nc['rpc_layer'] = 'grpc'\n"
        "os.environ['TF_CONFIG'] = json.dumps(c)"
    ),
    "TF_CONFIG amended by a function": Told(
        "def put(c):\n    os.environ['TF_CONFIG'] = json.dumps(c)\n"
        "c = json.loads(os.environ['TF_CONFIG'])\nput(c)"
    ),
    "TF_CONFIG put back": Told(
        "kept = os.environ.pop('TF_CONFIG')\nload()\nos.environ['TF_CONFIG'] = kept\n" + MADE
    ),
    "TF_CONFIG taken away afterwards": Told(MADE + "os.environ.pop('TF_CONFIG', None)"),
    "TF_CONFIG for children": Told("os.putenv('TF_CONFIG', x)"),  # TensorFlow asks os.environ
    "TF_CONFIG silenced below": Told(
        "os.environ['TF_CONFIG'] = json.dumps({\n  'a': 1,\n})  # orchestrate: ignore[o101]"
    ),
    "Keras 3 in a loop of its own": Told(LEGACY + MADE + "for b in d:\n    strategy.run(step, (b,))"),
    "a tensor after a return": Told(
        "def load():\n    if not path:\n        return None\n    return tf.zeros(3)\nx = load()\n" + MADE
    ),
    "a tensor of a name that is a parameter": Told(
        "def f():\n    tf.zeros(3)\ndef g(f):\n    f()\ng(print)\n" + MADE
    ),
    "a batch in a function that nobody calls": Told(MADE + f"def old():\n    {FIT}"),
    "a batch of a comment": Told("# no MultiWorkerMirroredStrategy\n" + FIT),
    "a batch that is made anew": Told(MADE + "model.fit(d.batch(50).rebatch(64))"),
    "a path of those that are left": Told(
        MADE + "model.fit(x)\nif task_id != 0:\n    sys.exit(0)\nmodel.save('m.h5')", tasks=2
    ),
    "a path after a return": Told(
        "def main():\n    model.fit(x)\n    if not is_chief():\n        return\n"
        "    model.save('m.h5')\nmain()\n" + MADE,
        tasks=2,
    ),
    "a backup without a restart": Told(BACKUP, apart=True),
    "a backup in a folder that is perhaps one": Told(BACKUP, job=AGAIN),
    "a backup that is copied": Told(BACKUP, job=Job(max_restarts=3, backup="saved"), apart=True),
    "a backup of Keras 3": Told("import keras\n" + BACKUP, job=AGAIN, apart=True),
    "a backup in a folder of all": Told(BACKUP.replace("saved", "/nfs/saved"), job=AGAIN, apart=True),
    "a backup in a bucket": Told(BACKUP.replace("saved", "gs://me/saved"), job=AGAIN, apart=True),
    "a backup elsewhere": Told("os.chdir('/nfs')\n" + BACKUP, job=AGAIN, apart=True),
    "a backup of one worker": Told(BACKUP, job=AGAIN, apart=True, roles=(Role.WORKER,)),
    "a backup of tasks on one host": Told(BACKUP, job=AGAIN, apart=True, roles=(Role.WORKER,), tasks=2),
    "a path elsewhere": Told("os.chdir(mine)\n" + MADE + SAVE, tasks=2),
    "words of a file": Told(
        MADE + THEN + "\nwords = [w.numpy() for w in tf.data.TextLineDataset('words.txt')]"
    ),
    "mnist in arrays": Told(MADE + "x, y = tfds.as_numpy(tfds.load('mnist', batch_size=-1))" + THEN),
    "mnist in a loop of its own": Told(MADE + "for b in tfds.load('mnist').batch(8):\n    strategy.run(f)"),
    "mnist read one by one": Told(
        MADE + "d = tfds.load('mnist')\nx = np.array([e['image'] for e in d])" + THEN
    ),
    "words that a layer learns": Told(
        MADE + "words = tf.data.TextLineDataset('words.txt')\nvectors.adapt(words.batch(8))" + THEN
    ),
    "a builder that tells of a set": Told(MADE + "print(tfds.builder('mnist').info)" + THEN),
    "files that grow": Told(
        MADE + "files = ['a']\nfiles.extend(more)\nd = tf.data.TFRecordDataset(files)" + THEN
    ),
    "files of a parameter": Told(
        MADE + "def d(files):\n    return tf.data.TFRecordDataset(files)\ndef e():\n    files = 'a'" + THEN
    ),
    "servers of estimators": Told(
        "s = tf.compat.v1.distribute.experimental.ParameterServerStrategy()", roles=SERVED
    ),
    "an expression of a thousand calls": Told("x = q" + ".add(1)" * 900),
    "TF_CONFIG that is not there yet": Told(f"if 'TF_CONFIG' not in os.environ:\n    {ENV}"),
    "TF_CONFIG in a function that nobody calls": Told(f"def local():\n    {ENV}"),
    "TF_CONFIG as a default": Told("os.environ.setdefault('TF_CONFIG', x)"),
    "TF_CONFIG read": Told("c = os.environ['TF_CONFIG']\nif os.environ['TF_CONFIG'] == '': pass"),
    "TF_CONFIG in a comment": Told("# os.environ['TF_CONFIG'] = 1\nx = \"os.environ['TF_CONFIG'] = 1\""),
    "TF_CONFIG of a child": Told("env = dict(os.environ)\nenv['TF_CONFIG'] = x"),
    "TF_CONFIG taken away from one": Told("os.environ.pop('TF_CONFIG', None)", roles=(Role.WORKER,)),
    "TF_CONFIG silenced": Told("os.environ['TF_CONFIG'] = x  # orchestrate: ignore[O101]"),
    "all silenced": Told("os.environ['TF_CONFIG'] = x  # orchestrate: ignore"),
    "Keras 3 on one task": Told(LEGACY, roles=(Role.WORKER,)),
    "Keras 2 by the program": Told("os.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + MADE),
    "Keras 3 as wished": Told(LEGACY + MADE, job=Job(legacy_keras=False)),
    "a tensor after it": Told(MADE + "x = tf.constant(1)"),
    "a tensor perhaps": Told("if debug:\n    x = tf.constant(1)\n" + MADE),
    "a tensor of a function": Told("def load():\n    return tf.zeros(3)\n" + MADE + "load()"),
    "layers that nobody calls": Told(
        "d = tf.keras.layers.Dense(1)\nx = tf.keras.Input((4,))\nf = tf.keras.layers.Flatten()(x)\n" + MADE
    ),
    "a Sequential that does not know its input": Told(
        "m = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n" + MADE
    ),
    "a Sequential without weights": Told("m = tf.keras.Sequential([tf.keras.Input((4,))])\n" + MADE),
    "a Sequential in a function": Told(
        "def build():\n    return tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])\n"
        + MADE
    ),
    "a manager that the chief saves with": Told(
        MADE + "m = tf.train.CheckpointManager(c, 'saved', 3)\nif chief:\n    m.save()", tasks=2
    ),
    "no strategy on one worker": Told("model = tf.keras.Sequential()" + THEN, roles=(Role.WORKER,)),
    "a training for each host": Told(
        "lr = [1, 2, 3, 4][json.loads(os.environ['TF_CONFIG'])['task']['index']]\nm = tf.keras.Sequential()"
        + THEN
    ),
    "Horovod": Told("import horovod.tensorflow as hvd\nhvd.init()\nm = tf.keras.Sequential()" + THEN),
    "an [env] with TensorFlow": Told("", installs=("pandas", "tensorflow-cpu==2.21")),
    "an [env] with what brings it": Told("", installs=("keras-hub",)),
    "no training": Told("import keras\nprint(keras.__version__)"),
    "a tensor of a lambda": Told("f = lambda: tf.zeros(3)\n" + MADE),
    "a tensor of a graph": Told("import tensorflow.compat.v1 as tf\nx = tf.constant(1)\n" + MADE),
    "graphs": Told("tf.compat.v1.disable_eager_execution()\nx = tf.constant(1)\n" + MADE),
    "seeds and options": Told("tf.random.set_seed(1)\no = tf.data.Options()\ntf.keras.Input((3,))\n" + MADE),
    "what only Python computes": Told(
        "s = tf.keras.optimizers.schedules.ExponentialDecay(1, 2, 3)\nl = tf.keras.losses.Huber()\n"
        "o = tf.keras.optimizers.get\n" + MADE
    ),
    "another's constant": Told("import scipy.constants as tf2\nx = tf2.constant(1)\n" + MADE),
    "a strategy perhaps": Told(
        "x = tf.constant(1)\nif many:\n    s = tf.distribute.MultiWorkerMirroredStrategy()"
    ),
    "a batch that divides": Told(MADE + "model.fit(x, batch_size=64)"),
    "a batch of two names": Told(MADE + "B = 3\nB = 4\nmodel.fit(x, batch_size=B)"),
    "a batch from elsewhere": Told(MADE + "B = 3\nfrom b import B\nmodel.fit(x, batch_size=B)"),
    "a batch of an option": Told(MADE + "model.fit(x, batch_size=args.batch)"),
    "a batch on one task": Told(MADE + FIT, roles=(Role.WORKER,)),
    "a batch of each worker": Told(MADE + "strategy.distribute_datasets_from_function(f)\n" + FIT),
    "a batch of another case": Told(MADE + f"if alone:\n    {FIT}"),
    "mnist in another case": Told(MADE + "d = tfds.load('mnist') if alone else tfds.load(name)"),
    "a batch of evaluation": Told(MADE + "model.evaluate(data.batch(50))"),
    "a path of each host": Told(MADE + SAVE),
    "a path of each task": Told(MADE + "model.fit(x)\nmodel.save(f'model-{me}.h5')", tasks=2),
    "a path of the chief": Told(MADE + "model.fit(x)\nif chief:\n    model.save('m.h5')", tasks=2),
    "another's save": Told(MADE + "model.fit(x)\nfigure.save('x.png')", tasks=2),
    "a checkpoint of tf_keras": Told(MADE + "tf.keras.callbacks.ModelCheckpoint('best')", tasks=2),
    "mnist on one": Told(MADE + THEN + "\ntfds.load('mnist')", roles=(Role.WORKER,)),
    "mnist by elements": Told(MADE + THEN + "\ntfds.load('mnist')", job=SHARD),
    "mnist with a policy": Told(
        MADE + THEN + "\ntfds.load('mnist')\no.experimental_distribute.auto_shard_policy = OFF"
    ),
    "mnist without the strategy": Told("tfds.load('mnist')"),
    "a large set": Told(MADE + THEN + "\ntfds.load('imagenet2012')"),
    "a set somewhere else": Told(MADE + THEN + "\ntfds.load('mnist', data_dir=folder)"),
    "a set that is not sent": Told(MADE + THEN + "\ntfds.load('mnist', data_dir='/data')"),
    "enough files": Told(MADE + THEN + '\ntf.data.TFRecordDataset(["a", "b", "c", "d"])'),
    "files by a pattern": Told(MADE + THEN + '\ntf.data.TFRecordDataset("x-*.tfrecord")'),
    "files by a name": Told(MADE + THEN + "\ntf.data.TFRecordDataset(files)"),
    "servers with servers": Told(
        "if r.task_type == 'ps': s.join()\ntf.distribute.ParameterServerStrategy(r)", roles=SERVED
    ),
    "a strategy passed on": Told("strategy = tf.distribute.MultiWorkerMirroredStrategy()\nfit(strategy)"),
    "a strategy kept": Told(
        "class A:\n    pass\na = A()\na.s = tf.distribute.MultiWorkerMirroredStrategy()\nf(a)"
    ),
    "a strategy of a loop": Told("s = tf.distribute.MultiWorkerMirroredStrategy()\ns.run(step)"),
    "no proxy": Told("", env=(("http_proxy", "http://proxy"),)),
    "a proxy for others": Told("", env=(("grpc_proxy", "http://p"), ("no_grpc_proxy", "10.0.0.0/8"))),
    "no Python": Told("x = = 1\nos.environ['TF_CONFIG'] = 1"),
}


@pytest.mark.parametrize("told", SAID.values(), ids=list(SAID))
def test_what_is_sure_is_said(told: Told) -> None:
    found = findings.find(scene(told))
    assert [one.code for one in found] == [told.code]
    assert told.words in found[0].what
    assert f"docs/lint.md#{told.code.lower()}" in str(found[0])
    assert findings.find(scene(told), [told.code]) == ()


@pytest.mark.parametrize("told", NOT_SAID.values(), ids=list(NOT_SAID))
def test_what_is_not_sure_is_not_said(told: Told) -> None:
    assert findings.find(scene(told)) == ()


def test_a_path_is_to_hold_what_can_be_a_name() -> None:
    """ORCHESTRATE_TASK has slashes: RUN/1/worker/0 and more."""
    (found,) = findings.find(scene(Told(MADE + SAVE, "O105", tasks=2)))
    assert "ORCHESTRATE_TASK" not in found.fix
    assert "`strategy.cluster_resolver.task_id`" in found.fix


def test_a_path_is_one_on_hosts_that_share_their_folder() -> None:
    alone = scene(Told(MADE + SAVE))
    (found,) = findings.find(replace(alone, one_folder=True))
    assert (found.code, found.what) == (
        "O105",
        "all tasks write model.h5, and these hosts share their working folder",
    )


def found_in(files: dict[str, str], *command: str) -> tuple[str, ...]:
    """What is found in a project of train.py and what it imports, as a launch reads it."""
    around = project(files)
    words = command or ("train.py",)
    one = replace(scene(Told("")), sources=program.read(words, around), shell=program.shell(words, around))
    return tuple(f"{found.code} {found.path}" for found in findings.find(one))


def project(files: dict[str, str]) -> Code:
    def no(_: str) -> bool:
        return False

    def raw(path: str) -> bytes:
        return files[path].encode()

    there = files.__contains__
    return Code("/", frozenset(files), files.get, raw, raw, there, no, no, no, no)


@pytest.mark.parametrize(
    "importing",
    [
        "if args.local:\n    import own",
        "def local():\n    import own",
        "try:\n    pass\nexcept E:\n    import own",
    ],
)
def test_a_module_that_is_perhaps_imported_is_not_judged(importing: str) -> None:
    assert found_in({"train.py": HEAD + importing, "own.py": f"import os\n{ENV}"}) == ()


@pytest.mark.parametrize("importing", ["import own", "try:\n    import own\nfinally:\n    pass"])
def test_a_module_that_is_imported_is_judged(importing: str) -> None:
    files = {"train.py": HEAD + importing, "own.py": "import second", "second.py": f"import os\n{ENV}"}
    assert found_in(files) == ("O101 second.py",)


@pytest.mark.parametrize(
    ("command", "own"),
    [("python src/train.py", "own.py"), ("python -m src.train", "src/own.py"), ("python src/train.py", "")],
)
def test_only_where_python_looks_is_a_module_imported(command: str, own: str) -> None:
    files = {"src/train.py": HEAD + "import own", "src/own.py": "", "own.py": ""}
    judged = not own
    own = own or "src/own.py"
    assert found_in({**files, own: f"import os\n{ENV}"}, *command.split()) == (f"O101 {own}",) * judged


def test_what_a_module_does_as_a_program_is_not_done_by_its_import() -> None:
    main = f"import os\nif __name__ == '__main__':\n    {ENV}"
    assert found_in({"train.py": HEAD + "import own", "own.py": main}) == ()


def test_each_program_of_a_shell_script_is_one() -> None:
    files = {
        "run.sh": "python prepare.py\npython train.py\n",
        "prepare.py": f"import os\nif __name__ == '__main__':\n    {ENV}",
        "train.py": HEAD + "x = tf.zeros(3)\n" + MADE,
    }
    assert found_in(files, "bash", "run.sh") == ("O103 train.py",)


@pytest.mark.parametrize(
    "line", ["export TF_CONFIG='{}'", "TF_CONFIG='{}' python train.py", "unset TF_CONFIG"]
)
def test_a_shell_script_that_writes_tf_config(line: str) -> None:
    files = {"run.sh": f"#!/bin/bash\n{line}\npython train.py\n", "train.py": HEAD + MADE}
    assert found_in(files, "./run.sh") == ("O101 run.sh",)
    assert found_in(files, "bash", "-c", line) == ("O101 command",)
    files["run.sh"] = f"#!/bin/bash\n{line}  # orchestrate: ignore[O101]\npython train.py\n"
    assert found_in(files, "./run.sh") == ()


@pytest.mark.parametrize(
    "lines",
    [
        "export TF_CONFIG=${TF_CONFIG:-'{}'}",
        "if [ -z $TF_CONFIG ]; then\nexport TF_CONFIG='{}'\nfi",
        "[ -n $1 ] || export TF_CONFIG='{}'",
        "# export TF_CONFIG='{}'",
        "echo $TF_CONFIG",
        "if local; then\nexport TF_CONFIG='{}'\nfi",
        "local() {\nexport TF_CONFIG='{}'\n}",
        "cat > env <<END\nTF_CONFIG='{}'\nEND",
        "if local; then\n  export TF_CONFIG='{}'\nfi",
    ],
)
def test_a_shell_script_that_keeps_tf_config(lines: str) -> None:
    files = {"run.sh": f"{lines}\npython train.py\n", "train.py": HEAD + MADE}
    assert found_in(files, "bash", "run.sh") == ()


def test_a_module_may_compute_when_it_is_imported() -> None:
    data = "import tensorflow as tf\nx = tf.zeros(3)\n"
    assert found_in({"train.py": HEAD + "import data\n" + MADE, "data.py": data}) == ("O103 data.py",)
    assert found_in({"train.py": HEAD + MADE + "import data\n", "data.py": data}) == ()
    later = "import tensorflow as tf\ndef load():\n    return tf.zeros(3)\n"
    assert found_in({"train.py": HEAD + "import data\n" + MADE, "data.py": later}) == ()


@pytest.mark.parametrize(
    "line", ["if $LOCAL; then python own.py; else python train.py; fi", "echo python own.py"]
)
def test_a_program_that_a_shell_perhaps_runs_is_not_judged(line: str) -> None:
    files = {"run.sh": line, "own.py": HEAD + ENV + MADE, "train.py": HEAD + MADE}
    assert found_in(files, "bash", "run.sh") == ()


@pytest.mark.parametrize("use", ["from dist import strategy", "import dist\ndist.strategy.run(f)"])
def test_a_strategy_that_another_file_uses_is_used(use: str) -> None:
    made = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
    assert found_in({"train.py": HEAD + "import dist\n" + use, "dist.py": made}) == ()
    assert found_in({"train.py": HEAD + "import dist", "dist.py": made}) == ("O108 dist.py",)


def test_every_code_has_a_case_and_a_section() -> None:
    on_hosts = {findings.PROGRAM, findings.PACKAGES, findings.PATH}  # test_local.py, test_paths.py
    assert {told.code for told in SAID.values()} == set(findings.CODES) - on_hosts
    page = (ROOT / "docs/lint.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (O\d+)$", page, re.MULTILINE) == list(findings.CODES)
    assert all(f"`{code}` | {what}" in page for code, what in findings.CODES.items())


def launched() -> Iterator[tuple[str, tuple[Role, ...], Job, str]]:
    """Each program of the corpus, as it is launched there."""
    for name, one in ALL.items():
        words = [word for word in one.command if not word.startswith("-")]
        path = next((word for word in words if word.endswith(".py")), None)
        if path is None and "-m" in one.command:
            module = words[1].replace(".", "/")
            path = next(p for p in (f"{module}.py", f"{module}/__main__.py") if (PROGRAMS / p).exists())
        if path is not None:
            job = Job(auto_shard=AutoShard.DATA) if "auto_shard" in one.job else Job()
            yield name, tuple(Role(role) for role in one.roles), job, str(Path(one.folder) / path)


CORPUS = {name: (roles, job, path) for name, roles, job, path in launched()}


@pytest.mark.parametrize("name", CORPUS)
def test_nothing_false_is_found_in_a_program_that_trains(name: str) -> None:
    roles, job, path = CORPUS[name]
    hosts = tuple(Host(f"h{n}", f"h{n}", f"h{n}", role=role) for n, role in enumerate(roles))

    def read(path: str) -> str | None:
        found = PROGRAMS / path
        return found.read_text() if found.is_file() else None

    known = dict(sources.closure(path, read))
    sure = sources.surely(path, known)
    texts = tuple(SourceFile(where, text, where != path, where in sure) for where, text in known.items())
    assert texts
    planned = plan.assign(
        Inventory(hosts, job=job),
        command=("train.py",),
        env={},
        name="",
        run="r",
        owner="o",
        created=0.0,
        environ={},
        sources=tuple(source.text for source in texts),
    )
    sent = {str(found.relative_to(PROGRAMS)) for found in PROGRAMS.rglob("*") if found.is_file()}
    assert (
        findings.find(findings.Scene(planned, texts, read, sent, sharded=job.auto_shard is AutoShard.DATA))
        == ()
    )
