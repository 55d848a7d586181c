"""Programs as users write them: how each is launched, and the loss that it must reach.

An exact loss was measured with one process and the same global batch, run by hand.
"""

from dataclasses import dataclass

LOSS = 0.529350  # of one process with the same global batch, after two epochs of eight steps

_ONE, _TWO, _FOUR = ("worker",), ("worker",) * 2, ("worker",) * 4
_SERVED = ("chief", "worker", "ps")
_FOLDER = ("MODEL_DIR={shared}",)
_SHARED = "1 file cannot be shared by 2 workers"


@dataclass(frozen=True)
class Launched:
    roles: tuple[str, ...]
    command: tuple[str, ...]
    loss: float | None = None  # exactly
    below: float = 1.0
    job: str = ""
    says: str = ""  # in the output
    folder: str = ""  # of the project, where it is launched
    env: tuple[str, ...] = ()  # NAME=VALUE; {shared} is a folder on all hosts

    @property
    def trainers(self) -> int:
        """Return the number of tasks that print a final loss."""
        return 1 if "ps" in self.roles else sum(role == "worker" for role in self.roles)


ALL = {
    # Keras, by each of its names
    "import keras": Launched(_FOUR, ("import_keras.py",), LOSS, says="repaired for several tasks"),
    "a module that imports keras": Launched(_TWO, ("lib_keras.py",), LOSS, says="repaired for several tasks"),
    "tf_keras by name": Launched(_TWO, ("tf_keras_itself.py",), LOSS),
    "a loop of its own with Keras 3": Launched(
        _TWO, ("keras_loop.py",), 0.063634, says="repaired for several tasks"
    ),
    "a train_step of Keras 3": Launched(_TWO, ("train_step.py",), LOSS),
    "float16 with Keras 3": Launched(_TWO, ("loss_scale.py",), below=0.54),
    "moving statistics of Keras 3": Launched(_TWO, ("moving_statistics.py",), 0.278573),
    "two devices for each task of Keras 3": Launched(_TWO, ("two_devices.py",), 0.038427),
    # Shapes of programs
    "the tutorial": Launched(_FOUR, ("tutorial.py",), 1.019342, below=2.0),
    "absl, a custom loop": Launched(_TWO, ("absl_flags.py", "--lr=0.1"), LOSS),
    "a package as program": Launched(_TWO, ("python", "-m", "app", "--config", "longer"), LOSS),
    "a folder of settings": Launched(_TWO, ("hydra_like/train.py", "model.lr=0.1", "data=rows"), LOSS),
    "a shell script": Launched(_TWO, ("bash", "run.sh"), below=0.75),
    "a line of a shell, with Keras 3": Launched(
        _TWO,
        ("bash", "-o", "pipefail", "-c", "python -u import_keras.py | tee log"),
        LOSS,
        says="repaired for several tasks",
    ),
    "a program that env starts": Launched(
        _TWO, ("env", "A=1", "python", "lib_keras.py"), LOSS, says="repaired for several tasks"
    ),
    "a program in a shell script": Launched(_ONE, ("./heredoc.sh", "2"), LOSS),
    "a loop with checkpoints": Launched(_TWO, ("loop_checkpoints.py",), 0.598491),
    "a folder below": Launched(_TWO, ("relative.py",), 0.474178, folder="jobs"),
    "no Keras": Launched(_TWO, ("modules.py",), 0.296476),
    "a long start": Launched(_TWO, ("slow_start.py",), LOSS, env=("PREPARES=5",)),
    # Data
    "one file": Launched(_TWO, ("one_file.py", "--epochs", "2"), LOSS, says=_SHARED),
    "several files": Launched(_TWO, ("tfrecords.py",), below=0.7),
    "a set of two files": Launched(_TWO, ("tfds_folder.py",), below=0.7),
    "a Sequence of Keras": Launched(_TWO, ("sequence.py",), 0.498813),
    "words": Launched(_TWO, ("text.py",), 0.098474),
    "images": Launched(_TWO, ("images.py",), below=0.05),
    "mixed precision": Launched(_TWO, ("mixed.py",), below=0.6),
    # Output files
    "callbacks and .keras of Keras 3": Launched(_TWO, ("callbacks_keras3.py",), LOSS),
    "five formats": Launched(_TWO, ("formats.py",), LOSS),
    # Other tasks
    "a coordinator": Launched(_SERVED, ("coordinator.py",), below=0.4),
    "a creator of data": Launched(_SERVED, ("ps_creator.py",), below=0.5, env=_FOLDER),
    "sessions of servers": Launched(_SERVED, ("ps_sessions.py",), below=0.4, env=_FOLDER),
    "an evaluator": Launched(("worker", "evaluator"), ("sidecar.py",), LOSS, env=_FOLDER),
}

# Launched by the suite: each reaches a different part of our code. The others are more of the same kinds
# (scripts/soak-programs).
IN_THE_SUITE = frozenset(("a module that imports keras",))
