"""docs/events.schema.json, which --update-golden makes, and what `--json` prints."""

from __future__ import annotations

import json
from typing import Any, get_args

import jsonschema
import msgspec
import pytest

from orchestrator.events import Event, Stamped, TaskExited, TaskProgressed, TaskStarted, encode
from tests.golden import matches_golden


def schema() -> dict[str, Any]:
    kinds = get_args(Event)
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for kind in kinds:
        part = parts[kind.__name__]
        fields = {"at": {"type": "number"}, **part["properties"]}
        if "attempt" in fields:
            fields["attempt"] = {"type": ["integer", "string"]}  # as `encode` has it
        part |= {"properties": fields, "required": list(fields)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of orchestrate: a line of --json",
        "oneOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds],
        "$defs": parts,
    }


def test_the_schema_in_docs_is_that_of_the_events() -> None:
    matches_golden("../../docs/events.schema.json", json.dumps(schema(), indent=1) + "\n")


@pytest.mark.parametrize(
    "event",
    [
        TaskStarted("worker/0", "gpu-01", "1", 77),
        TaskStarted("worker/0", "gpu-01", "validation", 77),
        TaskProgressed("worker/0", 3, None, 2.5),
        TaskExited("worker/0", "gpu-01", "1", None, 9, "", 1.0, 2.0, stopped=True),
    ],
)
def test_events_are_as_the_schema_says(event: Event) -> None:
    line = json.loads(encode(Stamped(1.0, event)))
    jsonschema.validate(line, schema())
    for broken in ({**line, "event": "Nothing"}, {**line, "at": "now"}, {"at": 1.0, "event": line["event"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema())
