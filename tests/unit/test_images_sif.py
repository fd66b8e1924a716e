"""The bytes of images: signed objects of a SIF, layers grafted onto a squashfs, links in a root, and what makes builds equal.

`tests/cluster/test_squashfs_property.py` has real file systems; here they are small.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers import READERS, tables
from toolkit.images.builder.apptainer.compose import append
from toolkit.images.builder.apptainer.inroot import is_below, resolve
from toolkit.images.recipe.reproducible import BYTE_CODE, is_dropped
from toolkit.images.sif import header as sif
from toolkit.images.sif.graft import graft, list_directory, read_inode
from toolkit.images.sif.tables import SUPERBLOCK_SIZE, position_of, settle_times
from toolkit.images.store.settings import inspect
from toolkit.images.store.sif_files import normalize, partition_digest, read_descriptors
from toolkit.images.store.signatures import fingerprint, is_signed

PUBLIC = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"


def test_a_public_key_has_the_fingerprint_that_openssl_says():
    words = ["openssl", "pkey", "-pubin", "-outform", "DER"]
    der = subprocess.run(words, input=PUBLIC.encode(), capture_output=True, check=True).stdout
    assert fingerprint(PUBLIC) == hashlib.sha256(der).hexdigest()
    assert fingerprint(PUBLIC.replace("\n", "\r\n")) == fingerprint(PUBLIC)


@pytest.mark.parametrize(
    "text", [PUBLIC.replace("PUBLIC", "PRIVATE"), PUBLIC.replace("MCow", "MC*w")]
)
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(ValueError, match=r"PUBLIC KEY|base64"):
        fingerprint(text)


def whole_sif(system: bytes, metadata: bytes = b"{}", sif_id: str = "1", time: int = 7) -> bytes:
    sizes = (len(system), 4, len(metadata))
    return (
        sif.build_header(sizes, sif_id.encode() * 16, time, "x86_64") + system + b"from" + metadata
    )


def test_the_labels_that_an_image_keeps_are_read_without_apptainer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    text = b'{"data": {"attributes": {"labels": {"a": "b"}}}}'
    (tmp_path / "x.sif").write_bytes(whole_sif(b"....", text))
    assert inspect(tmp_path / "x.sif") == {"labels": {"a": "b"}, "environment": {}}


def test_the_same_contents_become_the_same_file(tmp_path):
    one, same, other = (tmp_path / f"{name}.sif" for name in ("one", "same", "other"))
    one.write_bytes(whole_sif(b"a" * 4096))
    same.write_bytes(whole_sif(b"a" * 4096, sif_id="2", time=1000))
    other.write_bytes(whole_sif(b"b" * 4096))
    assert partition_digest(one) == hashlib.sha256(b"a" * 4096).hexdigest()
    sif_id = normalize(one, 1700000000)
    assert sif_id == normalize(same, 1700000000) != normalize(other, 1700000000)
    assert one.read_bytes() == same.read_bytes()
    assert not is_signed(one)
    groups = {each.group_id & 0xFF for each in read_descriptors(one)}
    assert groups == {1}, "they are signed together"


BASE, LAYER = READERS["squashfs"].seeds


def test_a_layer_that_only_adds_leaves_directories_as_they_are():
    base, layer = tables(BASE), tables(LAYER)
    struct.pack_into("<I", layer.ids, 0, 33)
    before = read_inode(base, base.head.root)
    graft(base, layer, SUPERBLOCK_SIZE, only_adds=True)
    root = read_inode(base, base.head.root)
    assert (root.owner, root.mode, root.number) == (before.owner, before.mode, before.number)
    for entry in list_directory(base, root):
        inode = read_inode(base, entry.inode)
        assert inode.number == entry.number
        assert struct.unpack_from("<Q", base.export, 8 * (inode.number - 1))[0] == entry.inode
    assert (33).to_bytes(4, "little") in [
        base.ids[at : at + 4] for at in range(0, len(base.ids), 4)
    ]


def test_data_are_appended_also_by_a_python_that_cannot_ask_the_kernel(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "copy_file_range")
    for name, data in (("base", BASE), ("layer", LAYER)):
        (tmp_path / name).write_bytes(data)
        append(tmp_path / "sif", str(tmp_path / name), Event())
    ends = [tables(data).data_end for data in (BASE, LAYER)]
    data = BASE[: ends[0]] + LAYER[SUPERBLOCK_SIZE : ends[1]]
    assert (tmp_path / "sif").read_bytes() == data


def test_times_since_the_packing_are_settled_and_older_ones_stay():
    found = tables(BASE)
    export = struct.iter_unpack("<Q", found.export)
    places = [position_of(reference) + 8 for (reference,) in export]
    for number, place in enumerate(places):
        struct.pack_into("<I", found.inodes, place, 1000 + number)
    before = bytes(found.inodes)
    settle_times(found, 1002, 7)
    for number, place in enumerate(places):
        expected = 7 if number >= 2 else 1000 + number
        assert struct.unpack_from("<I", found.inodes, place)[0] == expected
        struct.pack_into("<I", found.inodes, place, 1000 + number)
    assert (bytes(found.inodes), len(places) > 2) == (before, True)


@pytest.mark.parametrize(
    ("links", "path", "leads_to"),
    [
        ({}, "../../etc/hosts", "etc/hosts"),
        ({"etc/hosts": "../../../../etc/nologin"}, "/etc/hosts", "etc/nologin"),
        ({"etc": "usr/etc", "usr/etc": "/private"}, "/etc/../etc/hosts", "private/hosts"),
        ({"run": "var/run/./", "var/run": "../../../tmp//"}, "run/lock", "tmp/lock"),
        ({"a": "/"}, "a/a/a/etc", "etc"),
    ],
)
def test_links_are_followed_within_the_root(tmp_path, links, path, leads_to):
    for place, target in links.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).symlink_to(target)
    assert resolve(tmp_path, path) == tmp_path / leads_to
    assert not is_below(tmp_path, path)
    assert is_below(tmp_path, f"/{leads_to}")


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("/a")
    with pytest.raises(OSError, match="symbolic links"):
        resolve(tmp_path, "/a/x")


WORDS = st.lists(st.sampled_from(["a", "b", "..", ".", "", "x y"]), min_size=1, max_size=6)
PATHS = WORDS.map("/".join)
LINKS = st.dictionaries(st.sampled_from(["a", "b", "a/b", "c/a/b"]), PATHS, max_size=5)


@settings(max_examples=150)
@given(links=LINKS, path=PATHS, absolute=st.booleans())
def test_nothing_leads_out(tmp_path_factory, links, path, absolute):
    root = tmp_path_factory.mktemp("root") / "inner"
    root.mkdir()
    for place, target in links.items():
        if os.path.realpath(root / place) != str(root / place):
            continue  # a parent of it is a link, which may lead out
        with suppress(OSError):  # it is there, or its parent is a link to itself
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).symlink_to(f"/{target}" if absolute else target or ".")
    try:
        found = resolve(root, path)
    except OSError:
        return
    assert found == root or str(found).startswith(f"{root}/")
    assert os.path.realpath(found) == str(found)


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
