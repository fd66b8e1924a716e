"""Keys in PEM, and the objects of a SIF that a signature is of."""

from __future__ import annotations

import hashlib
import subprocess

import pytest

from toolkit.images.sif import header as sif
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


def test_the_labels_that_an_image_keeps_are_read_without_apptainer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    path, text = tmp_path / "x.sif", b'{"data": {"attributes": {"labels": {"a": "b"}}}}'
    path.write_bytes(
        sif.build_header((4, 4, len(text)), b"1" * 16, 7, "x86_64") + b"....from" + text
    )
    assert inspect(path) == {"labels": {"a": "b"}, "environment": {}}


def test_the_same_contents_become_the_same_file(tmp_path):
    facts = {"one": (b"1" * 16, 1000), "same": (b"2" * 16, 2000), "other": (b"1" * 16, 1000)}
    files = [tmp_path / f"{name}.sif" for name in facts]
    for path, (chosen, time) in zip(files, facts.values(), strict=True):
        head = sif.build_header((4096, 4, 2), chosen, time, "x86_64")
        path.write_bytes(head + path.name[:1].encode().ljust(4096, b"\0") + b"from{}")
    one, same, other = files
    same.write_bytes(same.read_bytes()[: sif.DATA_START] + one.read_bytes()[sif.DATA_START :])
    assert partition_digest(one) == hashlib.sha256(b"o".ljust(4096, b"\0")).hexdigest()
    other.write_bytes(other.read_bytes().replace(b"o\0", b"x\0"))
    sif_id = normalize(one, 1700000000)
    assert sif_id == normalize(same, 1700000000) != normalize(other, 1700000000)
    assert one.read_bytes() == same.read_bytes()
    assert not is_signed(one)
    groups = {each.group_id & 0xFF for each in read_descriptors(one)}
    assert groups == {1}, "they are signed together"
