import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import events as ev
from orchestrator.events import LogLine
from orchestrator.render.folding import MOMENT, Folded, Folding, Shown


def line(task: int, text: str, sent: float = 100.0) -> LogLine:
    return LogLine(f"worker/{task}", f"gpu-{task}", text, sent)


def started(count: int) -> Folding:
    folding = Folding()
    for task in range(count):
        folding.note(ev.TaskStarted(f"worker/{task}", f"gpu-{task}", "1", 1), aloud=False)
    return folding


def words(shown: list[Shown]) -> list[tuple[str, str]]:
    return [(f"{','.join(one.tasks)}" if isinstance(one, Folded) else one.task, one.text) for one in shown]


def feed(folding: Folding, *lines: LogLine, now: float = 0.0) -> list[tuple[str, str]]:
    return words([shown for one in lines for shown in folding.add(one, one.sent, now)])


ALL = "worker/0,worker/1,worker/2"


def test_a_line_of_one_is_held_for_a_moment() -> None:
    folding = started(3)
    assert feed(folding, line(1, "saved"), now=7.0) == []
    assert folding.tick(7.0 + MOMENT / 2) == []
    assert words(folding.tick(7.0 + MOMENT)) == [("worker/1", "saved")]


def test_what_was_written_long_apart_is_not_one_line_however_fast_it_is_read() -> None:
    folding = started(3)
    assert feed(folding, line(0, "a", 100.0), line(1, "a", 100.0 + 2 * MOMENT)) == [("worker/0", "a")]


def test_a_burst_is_folded_line_by_line() -> None:
    folding = started(3)
    texts = ["Epoch 1/2", "6/6 - 0s - loss: 0.5000 - 9ms/step", "Epoch 2/2"]
    shown = feed(folding, *(line(task, text) for task in range(3) for text in texts))
    assert shown == [(ALL, text) for text in texts]


RUN = "20261127-013316-vra9"
ALIKE = [
    ("6/6 - 0s - loss: 0.5 - 398ms/epoch - 66ms/step", "6/6 - 1s - loss: 0.5 - 1s/epoch - 171ms/step", True),
    ("step 40: loss 0.3012, 41.2 steps/s", "step 40: loss 0.3012, 9.8 steps/s", True),
    ("\x1b[1m6/6\x1b[0m \x1b[1m0s\x1b[0m 7ms/step", "\x1b[1m6/6\x1b[0m \x1b[1m1s\x1b[0m 12ms/step", True),
    ("6/6 - 0s - loss: 0.5", "6/6 - 0s - loss: 0.6", False),
    ("2026-11-27 01:33:16,123 INFO step 3", "2026-11-27 01:33:17,004 INFO step 3", True),
    ("[01:33:16] step 3", "[01:33:17] step 3", True),
    ("INFO 2026-11-27T01:33:16.1Z: step 3", "INFO 2026-11-27T01:33:16.2Z: step 3", True),
    ("11/27/2026 01:33:16 - INFO - x", "11/27/2026 01:33:17 - INFO - x", True),
    ("I1127 01:33:16.123456 140234 train.py:12] step 3", "I1127 01:33:16.1 9 train.py:12] step 3", True),
    ("2026-11-27 01:33:16 step 3", "2026-11-27 01:33:16 step 4", False),
    ("row 2026-11-27 01:33:16", "row 2026-11-27 01:33:17", False),
    (f'  File "/h/1/runs/{RUN}/work/t.py", line 6', f'  File "/h/2/runs/{RUN}/work/t.py", line 6', True),
    ("gpu: Tesla T4, cuda: 12.1.2", "gpu: Tesla T4, cuda: 11.8.0", False),
]


@pytest.mark.parametrize(("one", "other", "alike"), ALIKE)
def test_lines_are_alike_but_for_durations_and_rates(one: str, other: str, alike: bool) -> None:
    folding = started(2)
    assert feed(folding, line(0, one), line(1, other)) == ([("worker/0,worker/1", one)] if alike else [])


ONEDNN = (  # in its full length
    "oneDNN custom operations are on. You may see slightly different numerical results due to floating-point"
    " round-off errors from different computation orders. To turn them off, set the environment variable"
    " `TF_ENABLE_ONEDNN_OPTS=0`."
)
STAMP = "0000 00:00:1795320342.882476    8101 "


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        f"I{STAMP}cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use",
        f"I{STAMP}port.cc:153] {ONEDNN}",
        f"I{STAMP}gpu_device.cc:20] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.0GiB",
        f"I{STAMP}service.cc:152] XLA service 0x7f failed over",
        "I1127 01:33:16.123456 140234 cross_device_ops.py:617] Reduce to /job:localhost failed once",
        "2024-01-02 09:35:23.860511: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.",
        "INFO:tensorflow:Collective all_reduce tensors: 2 all_reduces, num_devices = 1",
    ],
)
def test_what_tensorflow_prints_for_information_is_left_out(text: str) -> None:
    folding = started(1)
    assert feed(folding, line(0, text), line(0, "data ready")) == [("worker/0", "data ready")]
    assert folding.flush() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I am a line",
        "2024 is a year",
        "INFO:tensorflow:Error reported to Coordinator: out of range",
        "I1127 01:33:16.123456 140234 train.py:12] step 3: loss 0.5",
        "/job:worker/replica:0/task:2",
        f"W{STAMP}gpu_device.cc:2341] Cannot dlopen some GPU libraries.",
        "To enable the following instructions: are my own words",
    ],
)
def test_what_may_matter_is_shown(text: str) -> None:
    assert feed(started(1), line(0, text)) == [("worker/0", text)]


def test_lines_below_information_are_left_out_with_it() -> None:
    stragglers, peer = (
        f"I{STAMP}coordination_service.cc:505] Example stragglers:",
        "/job:worker/replica:0/task:2",
    )
    unhealthy = f"E{STAMP}coordination_service.cc:9] The following tasks are unhealthy:"
    said = (line(0, stragglers), line(1, unhealthy), line(0, peer), line(1, peer), line(0, "data ready"))
    shown = [("worker/1", unhealthy), ("worker/1", peer), ("worker/0", "data ready"), ("worker/0", peer)]
    folding = started(2)
    assert [*feed(folding, *said, line(0, peer)), *words(folding.flush())] == shown


def test_warnings_that_differ_in_their_stamps_are_one() -> None:
    one, other = f"W{STAMP}a.cc:1] x", "W0000 00:00:1795320343.000001    8203 a.cc:1] x"
    assert feed(started(2), line(0, one), line(1, other)) == [("worker/0,worker/1", one)]


TEXTS = st.sampled_from(["a", "b", "Epoch 1/2", "6/6 - 9ms/step", "6/6 - 12ms/step", "Error: x"])


@given(st.lists(st.tuples(st.integers(0, 3), TEXTS, st.floats(0, 0.5), st.booleans()), max_size=80))
def test_each_line_is_shown_once_in_its_tasks_order(steps: list[tuple[int, str, float, bool]]) -> None:
    folding = started(4)
    now, shown = 0.0, []
    for task, text, pause, tick in steps:
        now += pause
        shown += folding.add(line(task, text, 100.0 + now), 100.0 + now, now)
        shown += folding.tick(now) if tick else []
    shown += folding.flush()
    assert folding.flush() == []
    for task in range(4):
        name = f"worker/{task}"
        mine = [one.text for one in shown if name in (one.tasks if isinstance(one, Folded) else (one.task,))]
        wrote = [text for number, text, *_ in steps if number == task]
        assert [text.replace("12ms", "9ms") for text in mine] == [
            text.replace("12ms", "9ms") for text in wrote
        ]
