"""Small wheels made by hand, so that environments can be made without a package index."""

import base64
import hashlib
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, source: str, module: str = "") -> Path:
    """Create a pure wheel (PEP 427) with one module; the folder also serves as an index."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    page = folder / name.replace("_", "-") / "index.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text(f'<!DOCTYPE html><html><body><a href="../{path.name}">{path.name}</a></body></html>\n')
    info = f"{name}-{version}.dist-info"
    files = {
        f"{module or name}.py": source,
        f"{info}/METADATA": "Metadata-Version: 2.1\nRequires-Python: >=3.8\n"
        f"Name: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{file},sha256={_digest(text)},{len(text.encode())}" for file, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
