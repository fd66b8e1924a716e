"""Keys in PEM, and the objects of a SIF that a signature is of."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from toolkit.images.sif import header as sif
from toolkit.images.sif.header import PARTITION
from toolkit.images.store.settings import inspect
from toolkit.images.store.sif_files import normalize, partition_digest, read_descriptors
from toolkit.images.store.signatures import fingerprint, is_signed

PUBLIC = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"


def test_a_public_key_has_the_fingerprint_that_openssl_says():
    der = subprocess.run(
        ["base64", "-d"], input=PUBLIC.splitlines()[1].encode(), capture_output=True, check=True
    ).stdout
    assert fingerprint(PUBLIC) == hashlib.sha256(der).hexdigest()
    assert fingerprint(PUBLIC.replace("\n", "\r\n")) == fingerprint(PUBLIC)


@pytest.mark.parametrize(
    "text", ["", PUBLIC.replace("PUBLIC", "PRIVATE"), PUBLIC.replace("MCow", "MC*w")]
)
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(ValueError, match=r"PUBLIC KEY|base64"):
        fingerprint(text)


def write_sif(path: Path, sif_id: bytes, time: int, data: bytes = b"file system") -> None:
    path.write_bytes(
        sif.build_header((4096, 4, 2), sif_id, time, "x86_64") + data.ljust(4096, b"\0") + b"from{}"
    )


def test_the_labels_that_an_image_keeps_are_read_without_apptainer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    path, text = tmp_path / "x.sif", b'{"data": {"attributes": {"labels": {"a": "b"}}}}'
    path.write_bytes(
        sif.build_header((4, 4, len(text)), b"1" * 16, 7, "x86_64") + b"....from" + text
    )
    assert inspect(path) == {"labels": {"a": "b"}, "environment": {}}


def test_the_same_contents_become_the_same_file(tmp_path):
    one, same, other = (tmp_path / f"{name}.sif" for name in ("one", "same", "other"))
    write_sif(one, b"1" * 16, 1000)
    write_sif(same, b"2" * 16, 2000)
    write_sif(other, b"1" * 16, 1000, b"another file system")
    assert partition_digest(one) == hashlib.sha256(b"file system".ljust(4096, b"\0")).hexdigest()
    assert partition_digest(one) != partition_digest(other)
    sif_id = normalize(one, 1700000000)
    assert sif_id == normalize(same, 1700000000) != normalize(other, 1700000000)
    assert one.read_bytes() == same.read_bytes()
    header = sif.parse_header(one.read_bytes()[: sif.HEADER_SIZE])
    assert header
    assert header.sif_id == sif_id
    assert not is_signed(one)
    found = read_descriptors(one)
    assert {one.group_id & 0xFF for one in found} == {1}, "they are signed together"
    systems = [one.extent for one in found if one.data_type == PARTITION]
    assert systems == [(sif.DATA_START, 4096)]
    assert sif.parse_descriptors(b"#!/bin/sh\n" * 1000) == ()
