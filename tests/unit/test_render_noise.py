from __future__ import annotations

import pytest

from orchestrator.render.folding import LineOrigin, origin_of

NEW = "0000 00:00:1795320342.882476    8101 "
OLD = "2024-01-02 09:35:23.860511: "


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        (
            f"I{NEW}port.cc:153] oneDNN custom operations are on. Numbers may differ "
            "due to floating-point round-off errors from different computation orders."
        ),
        f"I{NEW}cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use",
        f"I{NEW}coordination_service.cc:1472] Barrier(WaitForAllTasks::12::0) has passed with status: OK",
        f"W{NEW}dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized",
        f"E{NEW}cuda_dnn.cc:8310] Unable to register cuDNN factory: x",
        f"W{NEW}computation_placer.cc:177] computation placer already registered. Please check linkage",
        "I1122 03:41:34.123456   30788 port.cc:153] oneDNN custom operations are on.",
        f"{OLD}I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.",
        f"{OLD}E cuda/cuda_fft.cc:607] Unable to register cuFFT factory: x",
        f"{OLD}W tf2tensorrt/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT",
        (
            f"{OLD}I cuda/cuda_executor.cc:901] could not open file to read "
            "NUMA node: /sys/bus/pci/devices/0000:01:00.0/numa_node"
        ),
        (
            f"{OLD}W framework/local_rendezvous.cc:404] Local rendezvous is aborting with status: "
            "OUT_OF_RANGE: End of sequence"
        ),
        "INFO:tensorflow:Collective all_reduce tensors: 2 all_reduces, num_devices = 1",
    ],
)
def test_tensorflows_own(text: str) -> None:
    assert origin_of(text) is LineOrigin.NOISE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Epoch 1/3",
        "I am a line",
        "2024 is a year",
        "Traceback (most recent call last):",
        "WARNING:tensorflow:Model failed to serialize as JSON",
        "INFO:tensorflow:Error reported to Coordinator: out of range",
        f"I{NEW}gpu_device.cc:20] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.0GiB",
        f"W{NEW}gpu_device.cc:2341] Cannot dlopen some GPU libraries.",
        f"E{NEW}ring_alg.cc:292] Aborting RingReduce with ABORTED: Collective ops is aborted",
        f"F{NEW}coordination_service_agent.cc:1] Terminating process because a task has failed",
        f"{OLD}F tensorflow/core/platform/default/env.cc:74] Check failed: ret == 0",
        "To enable the following instructions: are my own words",
    ],
)
def test_the_tasks(text: str) -> None:
    assert origin_of(text) is LineOrigin.TASK
