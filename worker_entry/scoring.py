"""Loss and accuracy on the test data, exactly once per example, however many tasks share the work."""

from __future__ import annotations

from typing import Any

from worker_entry import models
from worker_entry.data import pipeline
from worker_entry.data.source import Source
from worker_entry.job import Job, Score
from worker_entry.models import Network


def of(job: Job, network: Network) -> Score:
    """Of a compiled model where it is: all tasks of a synchronous strategy take part.

    Parameter servers evaluate inexactly (a worker may see an example twice), so the chief does it alone.
    """
    if job.asynchronous:
        alone = models.build(job.options, job.source)
        alone.model.set_weights(network.model.get_weights())
        return of_model(compiled(alone.model, network), job.source, job.options.batch_size)
    return of_model(network.model, job.source, job.global_batch)


def compiled(model: Any, network: Network) -> Any:
    """A model with this network's outputs, made ready to be evaluated; in the scope it was made in."""
    model.compile(loss=network.loss(), metrics=["accuracy"])
    return model


def of_model(model: Any, source: Source, batch: int) -> Score:
    loss, accuracy = model.evaluate(pipeline.test_batches(source, batch), verbose=0)
    return Score(float(loss), float(accuracy))
