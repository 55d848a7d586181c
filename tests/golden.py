"""Golden files: the text that the product prints stands in one file below tests/golden, and nowhere else."""

from pathlib import Path

FOLDER = Path(__file__).parent / "golden"

# Set by the option --update-golden: files are rewritten, and whoever reviews the change reads the difference.
update = False


def matches_golden(name: str, text: str) -> None:
    """Assert that the text is that of tests/golden/NAME."""
    path = FOLDER / name
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return
    assert path.is_file(), f"no {path.name} yet: pytest --update-golden makes it"
    assert text == path.read_bytes().decode(), f"not as in {path}; --update-golden rewrites it"
