"""The language of the code: names that describe their value, and the terms of the glossary.

The text after `try:` is an action: a command in backquotes, or an imperative.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.diagnosis import rules

ROOT = Path(__file__).parents[2]
# No bare participles: a name describes its value, `match` for `found`, `message` for `said`.
PARTICIPLES = frozenset({"found", "said", "told", "known", "wanted", "seen", "met", "left", "one", "asked"})
MOST_PARTICIPLES = 7
# A commit that removes the last violation sets the count to 0.


def trees(*parts: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(path for part in parts for path in (ROOT / part).rglob("*.py")):
        yield path, ast.parse(path.read_bytes())


def bindings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name


def test_names_describe_their_value() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {name}"
        for path, tree in trees("orchestrator")
        for node in ast.walk(tree)
        for name in bindings(node)
        if name in PARTICIPLES
    ]
    assert len(wrong) <= MOST_PARTICIPLES, wrong


# The glossary: expressions that confused readers, and the terms to use instead.
GLOSSARY = {
    r"mend(?:s|ed|ing)?": "fix",
    r"could not do its part": "failed on this machine",
    r"comes? along": "bundled",
    r"(?:stands?|stood) in (?:a )?line": "waits in the queue",
    r"behind whom": "which runs are ahead",
    r"(?:is|are) told": "is notified; receives",
    r"at hand": "available",
    r"first cause": "root cause",
    r"trains? alone": "local validation",
    r"had again|be had": "available; reproduced",
    r"we do not know": "unknown",
    r"that there (?:is|are)": "existing",
    r"in vain": "without a reply",
    r"so to say": "",
}
PROSE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "hosts.example.toml",
    *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)


def test_prose_uses_the_glossary() -> None:
    expression = re.compile("|".join(rf"\b(?:{old})\b" for old in GLOSSARY), re.IGNORECASE)
    sources = [path for part in ("orchestrator", "worker_entry") for path in (ROOT / part).rglob("*.py")]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in [*sources, *(ROOT / name for name in PROSE)]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in expression.finditer(line)
        if "`" + match[0] not in line
    ]
    assert not wrong, wrong


WORDS = """
add allow ask build call change check choose clear close compare compile configure convert copy correct count
create delete do echo end export find fix free get give have install keep launch leave let list load look
lower make mark measure move name omit open pack pass point prepare print pull put raise read reboot remove
rename replace report rewrite run save see send set share start stop take tell train try turn unset update
upgrade use wait watch write
"""
IMPERATIVES = frozenset(WORDS.split())


def texts(node: ast.expr | None) -> Iterator[str]:
    """Yield an expression's text as far as it is constant, with `{}` for inserted values."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in values)
        case ast.BinOp(op=ast.Add(), left=left):
            yield from texts(left)
        case ast.IfExp(body=body, orelse=orelse):
            yield from texts(body)
            yield from texts(orelse)


def hints() -> Iterator[tuple[str, str]]:
    for path, tree in trees("orchestrator"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).lower() == "hint":
                for text in filter(None, texts(node.value)):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            given = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
            if name == "PhaseFailed" and len(node.args) > 2:  # phase, cause, hint
                given.append(node.args[2])
            if isinstance(node.func, ast.Attribute) and node.func.attr == "says" and len(node.args) > 4:
                given.append(node.args[4])  # of a check: name, level, found, why, hint
            for text in (text for one in given for text in texts(one) if text):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def is_to_do(hint: str) -> bool:
    first = hint.split(maxsplit=1)[0].strip(",;:").lower()
    return hint.startswith(("`", "{}")) or first in IMPERATIVES


def test_every_hint_is_an_action() -> None:
    advice = ((f"rule {rule.pattern.pattern}", rule.advice) for rule in rules.table() if rule.advice)
    found = [*hints(), *advice]
    assert len(found) > 100
    assert not [f"{where}: {hint}" for where, hint in found if not is_to_do(hint)]


_FOLDER_OR_FILE = re.compile(r"(?i)(?<![a-z])(path|file|folder|root|lock|notebook)(?![a-z(]|\.run)")


def test_a_path_in_a_command_is_quoted() -> None:
    """A copied `cd My Project` fails in the shell."""
    unquoted = []
    for source, tree in trees("orchestrator"):
        for node in ast.walk(tree):
            if not isinstance(node, ast.JoinedStr):
                continue
            inside = False
            for value in node.values:
                if isinstance(value, ast.Constant):
                    inside ^= str(value.value).count("`") % 2 == 1
                    continue
                code = ast.unparse(value)
                if inside and _FOLDER_OR_FILE.search(code) and "shlex" not in code and "quoted" not in code:
                    unquoted.append(f"{source.relative_to(ROOT)}:{node.lineno}: {code}")
    assert not unquoted
