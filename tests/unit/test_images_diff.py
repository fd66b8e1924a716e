"""Two images are compared by what unsquashfs lists of them."""

from __future__ import annotations

from toolkit.images.store.diff import (
    Change,
    compare_files,
    compare_values,
    parse_listing,
    variables,
)

ONE = """\
Parallel unsquashfs: Using 2 processors
drwxr-xr-x root/root                76 2026-11-21 04:51 squashfs-root
-rwxr-xr-x root/root               630 2026-11-21 04:51 squashfs-root/same
-rw-r--r-- root/root                 5 2026-11-21 04:51 squashfs-root/with space -> not a link
lrwxrwxrwx root/root                27 2026-11-21 04:51 squashfs-root/link -> usr/lib/a -> b
crw-rw-rw- root/root           1,   3 2026-11-21 04:51 squashfs-root/dev/null
-rwsr-xr-x root/shadow              10 2026-11-21 04:51 squashfs-root/gone
drwxrwxrwt root/root                 3 2026-11-21 04:51 squashfs-root/tmp
"""
OTHER = (
    ONE.replace("usr/lib/a -> b", "usr/lib/c")
    .replace("-rwsr-xr-x root/shadow              10 2026-11-21 04:51 squashfs-root/gone\n", "")
    .replace("630 2026-11-21 04:51", "630 2026-11-22 04:51")
    + "-rw-r--r-- 1000/1000                 1 2026-11-21 04:51 squashfs-root/new\n"
)


def test_a_listing_is_read_with_links_devices_and_odd_names() -> None:
    found = parse_listing(ONE)
    assert set(found) == {
        "/",
        "/same",
        "/with space -> not a link",
        "/link",
        "/dev/null",
        "/gone",
        "/tmp",
    }
    assert found["/link"].facts == "lrwxrwxrwx root/root 27 -> usr/lib/a -> b"
    assert (found["/dev/null"].facts, found["/dev/null"].size) == ("crw-rw-rw- root/root 1,   3", 0)


def test_changes_of_files_are_told_apart_from_times() -> None:
    before, after = parse_listing(ONE), parse_listing(OTHER)
    changes, times, unknown = compare_files(before, after, lambda _: True)
    assert [(one.name, one.before, one.after) for one in changes] == [
        ("/gone", "-rwsr-xr-x root/shadow 10", ""),
        (
            "/link",
            "lrwxrwxrwx root/root 27 -> usr/lib/a -> b",
            "lrwxrwxrwx root/root 27 -> usr/lib/c",
        ),
        ("/new", "", "-rw-r--r-- 1000/1000 1"),
    ]
    assert (times, unknown) == (1, 0)


def test_contents_decide_where_sizes_are_the_same() -> None:
    before, after = parse_listing(ONE), parse_listing(ONE)
    changes, _, unknown = compare_files(
        before, after, lambda path: {"/same": None, "/gone": True}.get(path, False)
    )
    assert changes == [
        Change(
            kind="files",
            name="/with space -> not a link",
            before="-rw-r--r-- root/root 5",
            after="other contents",
        )
    ]
    assert unknown == 1


def test_names_and_variables_are_compared() -> None:
    before = variables(
        ["#!/bin/sh\nexport PATH=/a:$PATH\nexport B=1\n", "export B=2\nif x; then\n  C='3'\nfi\n"]
    )
    assert before == {"PATH": "/a:$PATH", "B": "2", "C": "'3'"}
    assert compare_values("environment", before, {**before, "B": "4"}) == [
        Change(kind="environment", name="B", before="2", after="4")
    ]
    assert compare_values("packages", {}, {"x": "1"}) == [
        Change(kind="packages", name="x", before="", after="1")
    ]
