"""Train with PyTorch or JAX on a single host, on each of its devices, to validate it for their programs.

`python -m worker_entry.alone torch`
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from worker_entry.report import Reporter

STEPS = 20


def torch() -> tuple[str, list[Callable[[], float]]]:
    """Describe PyTorch and its devices, and return a training step for each."""
    import torch
    from torch import distributed, nn

    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if not distributed.is_available() or not (distributed.is_gloo_available() or devices):
        raise RuntimeError("this PyTorch is built without torch.distributed: its tasks could not meet")

    def steps(device: str) -> Callable[[], float]:
        torch.manual_seed(42)
        images, labels = torch.rand(64, 64, device=device), torch.arange(64, device=device) % 10
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step() -> float:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            return float(loss)

        return step

    return f"PyTorch {torch.__version__}", [steps(device) for device in devices or ["cpu"]]


def jax() -> tuple[str, list[Callable[[], float]]]:
    """Describe JAX and its devices, and return a training step for each."""
    # The training that follows immediately needs the memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    def loss_of(weights: jax.Array, images: jax.Array) -> jax.Array:
        return ((images @ weights - 1) ** 2).mean()

    def steps(device: jax.Device) -> Callable[[], float]:
        images = jax.device_put(jax.random.uniform(jax.random.key(42), (64, 64)), device)
        slope = jax.jit(jax.value_and_grad(loss_of))
        state = [jax.device_put(jax.numpy.zeros((64, 10)), device)]

        def step() -> float:
            loss, slopes = slope(state[0], images)
            state[0] = state[0] - 0.01 * slopes
            return float(loss)

        return step

    return f"JAX {jax.__version__}", [steps(device) for device in jax.local_devices()]


def main(framework: str) -> None:
    name, devices = {"torch": torch, "jax": jax}[framework]()
    reporter = Reporter.from_environment()
    reporter.ready(name)
    for step in devices:
        step()  # the first steps compile and load
    took = time.monotonic()
    losses = [[step() for _ in range(STEPS)][-1] for step in devices]
    rate = STEPS * len(devices) / max(time.monotonic() - took, 1e-9)
    note = f"{name}, {len(devices)} device{'s' * (len(devices) > 1)}"
    print(f"{note}: loss {losses[0]:.4f}, {rate:.1f} steps/s", flush=True)
    reporter.result(loss=losses[0], steps_per_second=round(rate, 3), dataset="random numbers", note=note)


if __name__ == "__main__":
    main(sys.argv[1])
