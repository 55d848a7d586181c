"""Answers of the right form that cannot be, or that are meant for a terminal, a shell or a path."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.row import LOST, PROTOCOL, Row, Verb, when

_ESCAPES = (
    r"words = '\x1b]0;owned\x07\x1b[2J\x9b2J\u202e\u200b\U000e0041\n\rerror: x $(touch ' + CANARY + ')'"
)


def _of(verb: Verb, op: str, *rows: tuple[str, str, int, str]) -> Iterator[Row]:
    for name, what, status, words in rows:
        yield Row(f"{name} ({op})", verb, when(op, f"{_ESCAPES}\n{what}"), status, words)


def rows() -> Iterator[Row]:
    yield from _hello()
    yield from _preflight()
    yield from _launch()
    yield from _news()
    yield from _looks()


def _hello() -> Iterator[Row]:
    hello = "header['hello']"
    yield from _of(
        Verb.PREFLIGHT,
        "hello",
        ("without fields", f"{hello} = {{}}", 3, PROTOCOL),
        ("another protocol", f"{hello}['protocol'] = 2", 3, "version 2 of our protocol"),
        ("from the year 10^20", f"{hello}['time_ns'] = 10**38", 3, PROTOCOL),
        ("a state folder that is no path", f"{hello}['state'] = '../../x'", 3, PROTOCOL),
        ("no state folder, in hostile words", f"{hello}['state'] = None\n{_REFUSED}", 3, "wiped"),
        ("a user of hostile words", f"{hello}['user'] = words", 0, ""),
        ("a python of a megabyte", f"{hello}['python'] = words * 1000", 3, "our agent needs"),
        ("twice", "say(header)", 3, PROTOCOL),
        ("and gone", "say(header)\nleave()", 3, "error: liar "),  # lost, or closed: who is faster
    )


_REFUSED = "header['hello']['state_error'] = {'what': 'wiped ' + words, 'kind': 'kept', 'why': words * 99}"


def _preflight() -> Iterator[Row]:
    yield from _of(
        Verb.PREFLIGHT,
        "facts",
        ("packages of hostile words", "result['packages'] = {words: words, 'tensorflow': words}", 0, ""),
        ("100,000 packages", "result['packages'] = {str(n): words for n in range(10**5)}", 3, PROTOCOL),
        ("room below zero", "result['disk']['workdir']['free'] = -1", 3, PROTOCOL),
        ("ports of hostile words", "result['answers']['port'] = words", 0, ""),
        ("answers of hostile words", "result['answers'] = dict.fromkeys(result['answers'], words * 30)", 0, ""),
        ("a setup of hostile words", "result['setup'] = {'status': 1, 'words': words}; result['packages'] = {}", 0, ""),
        ("addresses that are none", "result['addresses'] = [{'name': words, 'ip': ip} for ip in (words, '::%%', '300.1.2.3', '')]", 0, ""),
        ("a python of hostile words", "result['python'].update(ok=False, error=words * 30)", 3, "python"),
        ("a workdir of hostile words", "result['disk']['workdir'].update(writable=False, error=words)", 3, "workdir"),
    )  # fmt: skip
    yield from _of(
        Verb.PREFLIGHT,
        "listen",
        ("no port", "result = {'listening': [], 'busy': []}", 3, PROTOCOL),
        (
            "a port held by hostile words",
            "result = {'listening': [], 'busy': [{'port': p, 'holder': words} for p in ask['ports']]}",
            3,
            "port",
        ),
        (
            "a port held by a run since the year 10^11",
            f"result = {{'listening': [], 'busy': [{{'port': p, 'holder': {_HOLDER}}} for p in ask['ports']]}}",
            3,
            "port",
        ),
    )
    yield from _of(
        Verb.PREFLIGHT,
        "probe",
        ("of other hosts", "for one in result['results']: one['host'] = 'x'", 3, PROTOCOL),
        ("of no host", "result['results'] = []", 3, PROTOCOL),
        ("the other not reached, in hostile words", _UNREACHED, 3, "reach"),
    )
    yield from _of(
        Verb.PREFLIGHT,
        "share_read",
        ("a disk shared with the other", "result['hosts'] = ['good', 'liar', words]", 0, ""),
    )


_UNREACHED = "result['results'][0].update(tcp=False, tcp_ms=None, why=words)"


def _launch() -> Iterator[Row]:
    launch = Verb.LAUNCH
    yield from _of(
        launch,
        "keep",
        (
            "kept by hostile words",
            "result = {'granted': False, 'holder': {'who': words * 50}}",
            3,
            "for another keeper",
        ),
    )
    yield from _of(
        launch,
        "lease",
        ("ports of others", f"result = {{'conflicts': [{{'port': 22, **{_HOLDER}}}]}}", 3, PROTOCOL),
        ("held by hostile words", f"result = {{'conflicts': [{{'port': int(p), **{_HOLDER}}} for p in ask['ports']]}}", 3, "taken by"),
    )  # fmt: skip
    yield from _of(
        launch,
        "work_make",
        ("a relative folder", "result['work'] = '../../x'", 3, PROTOCOL),
        ("a tree named by a path", "result['missing'] = ['../../x']", 3, PROTOCOL),
    )
    hostile, never = f"{_ESCAPES}\nresult['work'] = '/' + words", "result['missing'] = [ask['digest']]"
    for name, lie, status, told in (
        ("a folder of hostile words (work_make)", when("work_make", hostile), 1, ""),
        (
            "code that is never there (work_make)",
            when("work_make", never),
            3,
            "does not see the code",
        ),
    ):
        yield Row(name, launch, lie, status, told)
    yield from _of(
        launch,
        "start",
    )
    yield from _of(
        launch,
        "follow",
        ("tasks that nobody asked for", "result = {'missing': ['worker/0']}", 1, PROTOCOL),
        ("its task is not there", "result = {'missing': ['worker/1']}", 1, "knows nothing of it"),
    )
    yield from _of(
        launch,
        "sweep",
        ("hostile words killed", "result['killed'] = [{'pid': 1, 'argv0': words}] * 100", 0, ""),
        ("a path lives", "result['alive'] = ['../../x']", 0, "liar: no answer"),
    )
    send = "result.update(missing=[ask['digest']], made=False)"
    for name, begun, status, words in (
        ("pieces beyond the last one", "'bits': 'f' * 99, 'incoming': '/x'", 3, PROTOCOL),
        ("an incoming folder that is an option", "'incoming': '--rsh=touch ' + CANARY", 3, PROTOCOL),
        ("a folder for a shell", "'incoming': '/x; touch ' + CANARY + ' $(touch ' + CANARY + ')', 'base': '/y'", 3, "liar"),
        ("a base for a shell", "'incoming': '/x', 'base': '/x\\n`touch ' + CANARY + '`'", 3, "liar"),
    ):  # fmt: skip
        told = f"result = {{'present': False, 'path': '/p', **{{{begun}}}}}"
        lie = when("work_make", send) + when("store_begin", told)
        yield Row(f"{name} (store_begin)", launch, lie, status, words)


_HOLDER = "{'run': words, 'task': words, 'owner': words, 'since': 1e12}"


def _news() -> Iterator[Row]:
    """Of its own task, which prints a line and ends."""

    def extra(kind: str, more: str, payload: str = "b''") -> str:
        news = f"{{'stream': header['stream'], 'attempt': '1', 'task': 'worker/1', 'kind': {kind!r}, {more}}}"
        return f"say({news}, {payload})"

    def state(more: str) -> str:
        return f"header['state'] = {{**header['state'], {more}}}"

    for name, op, what, status, words in (
        ("a hole", "log", extra("log", "'offset': 10**9, 'times': []", "b'x'"), 1, PROTOCOL),
        ("of the other's task", "log", "header['task'] = 'worker/0'", 1, PROTOCOL),
        ("of an attempt that is a path", "log", "header['attempt'] = '../../x'", 1, PROTOCOL),
        ("of hostile words", "log", "payload = words.encode('utf-8', 'replace') + b'\\xff\\xfe\\n'", 0, ""),
        ("times that go backwards", "log", "header['times'] = [[9, 2**63 - 1], [0, 0], [2**62, 5]]", 0, ""),
        ("twice, and other words", "log", extra("log", "'offset': 0, 'times': []", "b'no\\n'"), 0, ""),
        ("a line of 10 MB", "log", _LONG_LINE, 0, ""),
        ("a step of 10^99", "log", extra("report", "'offset': 0", "b'{\"step\": ' + b'9' * 99 + b'}\\n'"), 0, ""),
        ("nested deep", "log", extra("report", "'offset': 0", "b'[' * 60000 + b'\\n'"), 0, ""),
        ("fields of other types", "log", extra("report", "'offset': 0", _ODD_REPORT), 0, ""),
        ("an end of 2^40", "state", state("'state': 'exited', 'exit_code': 2**40"), 1, PROTOCOL),
        ("hostile words", "state", state("'state': 'lost', 'message': words * 50"), 1, "is lost"),
        ("ended before it began", "state", state("'state': 'exited', 'exit_code': 3, 'started_ns': 2**62, 'ended_ns': 0"), 1, "exited with 3"),
        ("gaps of 2^62", "state", state("'gaps': [{'bytes': 2**62, 'why': words}] * 1000"), 0, "bytes of its log were lost"),
        ("killed for memory 2^53 times", "state", state("'state': 'exited', 'exit_code': None, 'exit_signal': 9, 'oom': {'kills': 2**53, 'limit': 2**62}"), 1, "memory"),
    ):  # fmt: skip
        yield from _of(Verb.LAUNCH, op, (name, what, status, words))


_LONG_LINE = (
    "header['times'] = []\nfor n in range(160): say({**header, 'offset': n * 65536}, b'x' * 65536)\n"
    "kept['on'] = True\nheader = None"
)
_ODD_REPORT = 'b\'{"step": [], "event": {}, "metrics": 7}\\n[]\\n7\\n"x"\\nnull\\n{}\\n\\xff\\n\''


def _looks() -> Iterator[Row]:
    for_mine = "mine = [one for one in result['runs'] if one['tasks']][0]\n"
    yield from _of(
        Verb.STATUS,
        "states",
        ("another run", "result['runs'][0]['run'] = 'x'", 0, PROTOCOL),
        ("a run named by a path", "result['runs'][0]['run'] = '../../x'", 0, PROTOCOL),
        ("an attempt that is a path", f"{for_mine}mine['tasks'][0]['attempt'] = '/etc'", 0, PROTOCOL),
        ("the other's task has ended", f"{for_mine}mine['tasks'] += [{{**mine['tasks'][0], 'task': 'worker/0', 'alive': False, 'state': {{'state': 'exited', 'exit_code': 42}}}}]", 0, ""),
        ("a keeper of hostile words", f"{for_mine}mine['keeper'] = {{'who': words, 'alive': True}}", 0, ""),
        ("a message of hostile words", f"{for_mine}mine['tasks'][0]['state'] = {{'state': 'lost', 'message': words * 50}}", 0, ""),
        ("a plan of 20 MB", f"{for_mine}mine['plan'] = 'x' * (20 << 20)", 0, LOST),
    )  # fmt: skip
    one = "result['tasks'][0]['processes'][0]"
    yield from _of(
        Verb.STACKS,
        "stacks",
        ("hostile words", f"{one}.update(argv0=words, state=words, why=words, how=words, text=words * 99)", 0, ""),
        ("a dump of brackets", f"{one}.update(python=True, text='File \"' * 10**5 + '(' * 10**5)", 0, ""),
        ("a line of 10^4000", f"{one}.update(python=True, text='Thread 0x1 (most recent call first):\\n  File \"a\", line ' + '9' * 5000 + ' in b')", 0, ""),
        ("the other's task", "result['tasks'][0]['task'] = 'worker/0'", 0, ""),
        ("a task that is a path", "result['tasks'][0]['task'] = '../../x'", 3, PROTOCOL),
    )  # fmt: skip
    yield from _of(
        Verb.EXEC,
        "exec",
        ("status 256", "result['status'] = 256", 3, PROTOCOL),
        ("hostile words", "result.update(status=1, error=words, left=[words] * 99)", 1, ""),
        ("more of it after the end", "say(header)\nheader = {'exec': 'out'}\npayload = b'x'", 0, ""),
    )
    yield from _of(
        Verb.EXEC,
        "out",
        ("of no stream", "header['exec'] = '../../x'", 3, PROTOCOL),
        ("of hostile words", "payload = words.encode('utf-8', 'replace') + b'\\xff\\n'", 0, ""),
        ("of 1 MB at once", "payload = b'x' * 2**20", 3, PROTOCOL),
        ("of 64 MB", "for _ in range(1000): say(header, b'x' * 65000 + b'\\n')", 0, ""),
    )
    yield from _of(
        Verb.CLEAN,
        "clean_look",
        ("runs that are paths", "result['alive'] = ['../../x']", 3, PROTOCOL),
    )
    kind = "result['folders']['code']"
    yield from _of(
        Verb.CLEAN,
        "clean",
        ("folders of hostile words", f"{kind}.update(count=1, gone=[{{'name': words, 'bytes': 1, 'idle': 1.0}}], failed=[words])", 1, ""),
        ("a count below zero", f"{kind}['count'] = -1", 3, PROTOCOL),
        ("trouble in hostile words", "result['trouble'] = [{'what': words, 'why': words, 'kind': 'lost', 'hint': words}]", 1, ""),
    )  # fmt: skip
