"""What makes builds equal: byte code without marks, and no logs. Times are in `test_images_sif.py`."""

from __future__ import annotations

import importlib.util
import marshal
import subprocess
import sys
from pathlib import Path

from toolkit.images.recipe.reproducible import BYTE_CODE, is_dropped

SOURCE = '''\
"""A module whose constants other code has, too."""
from os import path
NAMES = frozenset({"name", "join", "path", "value", "abspath"})
def value(self, name=("join", "path"), *, other=1.5):
    if name in {"self", "name", "args"}:
        return path.join(self.value, "join", f"{name}" * 1000)
    return [other, 10**40, b"bytes", None, ..., -1, 2j, "\\u00e9\\u4e00", lambda self: self.value("name")]
class A:
    value: int = 3
    def name(self): return self.value
'''


def _compiled(place: Path, before: str) -> bytes:
    """Compile the module in a process that has done something else before, and write the byte code again."""
    place.mkdir()
    (place / "module.py").write_text(SOURCE)
    (place / "byte-code.py").write_text(BYTE_CODE)
    script = f"{before}\nimport py_compile\nm = py_compile.PycInvalidationMode.UNCHECKED_HASH\n"
    script += "py_compile.compile('module.py', cfile='module.pyc', dfile='/module.py', invalidation_mode=m)"
    subprocess.run([sys.executable, "-c", script], cwd=place, check=True)
    (place / "changed").write_bytes(f"{place}/module.pyc\0".encode())
    subprocess.run(
        [sys.executable, "-I", "-S", "-B", "byte-code.py", "changed"], cwd=place, check=True
    )
    return (place / "module.pyc").read_bytes()


def test_byte_code_does_not_depend_on_what_its_process_did(tmp_path):
    noise = (
        "",
        "keep = [__import__('sys').intern(w) for w in 'self name value abspath args NAMES module other'.split()]",
        "import json, email",
    )
    found = {_compiled(tmp_path / str(at), before) for at, before in enumerate(noise)}
    (code,) = found
    assert code[:4] == importlib.util.MAGIC_NUMBER
    names: dict[str, object] = {}
    exec(marshal.loads(code[16:]), names)
    assert names["NAMES"] == {"name", "join", "path", "value", "abspath"}


def test_only_logs_of_package_managers_are_dropped():
    dropped = "log/dpkg.log log/apt/history.log log/apt/deep/er cache/ldconfig/aux-cache"
    dropped += " cache/apt/pkgcache.bin lib/dpkg/status-old"
    kept = "log/training.log log/apt cache/apt/archives/x.deb lib/dpkg/status"
    assert all(is_dropped(f"var/{path}") for path in dropped.split())
    assert not any(is_dropped(f"var/{path}") for path in (*kept.split(), "log/dpkg.log\n"))
    assert not is_dropped("opt/var/log/dpkg.log")
