"""What makes builds equal: byte code without marks, times that are settled, and what a build takes from the caches by a lock."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
from pathlib import Path

from tests.unit.test_images_squashfs import Image
from toolkit.images.recipe.reproducible import BYTE_CODE, is_dropped
from toolkit.images.sif.tables import Reader, position_of, read_tables, settle_times

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


def _compiled(place: Path, before: str, mode: str) -> bytes:
    """Compile the module in a process that has done something else before, and write the byte code again."""
    place.mkdir()
    (place / "module.py").write_text(SOURCE)
    (place / "byte-code.py").write_text(BYTE_CODE)
    script = f"{before}\nimport py_compile\nm = py_compile.PycInvalidationMode.{mode}\n"
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
    found = {
        _compiled(tmp_path / str(number), before, "UNCHECKED_HASH")
        for number, before in enumerate(noise)
    }
    assert len(found) == 1
    (code,) = found
    assert code[:4] == importlib.util.MAGIC_NUMBER
    names: dict[str, object] = {}
    (tmp_path / "module.pyc").write_bytes(code)
    spec = importlib.util.spec_from_file_location("module", tmp_path / "module.pyc")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exec(compile(SOURCE, "/module.py", "exec"), names)
    assert names["NAMES"] == module.NAMES
    assert module.A().name() == 3


def test_only_logs_of_package_managers_are_dropped():
    dropped = "log/dpkg.log log/apt/history.log log/apt/deep/er cache/ldconfig/aux-cache"
    dropped += " cache/apt/pkgcache.bin lib/dpkg/status-old"
    kept = "log/training.log log/apt cache/apt/archives/x.deb lib/dpkg/status"
    assert all(is_dropped(f"var/{path}") for path in dropped.split())
    assert not any(is_dropped(f"var/{path}") for path in (*kept.split(), "log/dpkg.log\n"))
    assert not is_dropped("opt/var/log/dpkg.log")


def _places(export: bytearray) -> list[int]:
    return [position_of(reference) + 8 for (reference,) in struct.iter_unpack("<Q", export)]


def test_times_since_the_packing_are_settled_and_older_ones_stay():
    """Of so many inodes, of different lengths, that some lie across two blocks of the table."""
    image = Image(
        {f"link-{number}": "x" * (number % 40 + 1) for number in range(12000)}
        | {"directory": {"file": b"text"}}
    )
    tables = read_tables(Reader(len(image.bytes), lambda at, length: image.bytes[at : at + length]))
    places = _places(tables.export)
    assert any(place // 8192 != (place + 3) // 8192 for place in places)
    before = [1000 + number % 7 for number in range(len(places))]
    for place, time in zip(places, before, strict=True):
        struct.pack_into("<I", tables.inodes, place, time)
    rest = bytes(tables.inodes)
    settle_times(tables, 1003, 7)
    assert [struct.unpack_from("<I", tables.inodes, place)[0] for place in places] == [
        7 if time >= 1003 else time for time in before
    ]
    for place, time in zip(places, before, strict=True):
        struct.pack_into("<I", tables.inodes, place, time)
    assert tables.inodes == rest
