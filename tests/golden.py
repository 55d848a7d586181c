"""Golden files: each text that the product prints is kept in one file below tests/golden only."""

from pathlib import Path

FOLDER = Path(__file__).parent / "golden"

# Set by the option --update-golden: files are rewritten, and the reviewer reads the diff.
update = False


def matches_golden(name: str, text: str) -> None:
    """Assert that the text equals tests/golden/NAME."""
    path = FOLDER / name
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return
    assert path.is_file(), f"no {path.name} yet: pytest --update-golden makes it"
    assert text == path.read_bytes().decode(), f"not as in {path}; --update-golden rewrites it"
