"""Two images are compared by what unsquashfs lists of them."""

from __future__ import annotations

from toolkit.images.store.diff import compare_files, compare_values, parse_listing, variables

LISTING = """\
Parallel unsquashfs: Using 2 processors
drwxr-xr-x root/root                76 2026-11-21 04:51 squashfs-root
-rwxr-xr-x root/root               630 2026-11-21 04:51 squashfs-root/same
-rw-r--r-- root/root                 5 2026-11-21 04:51 squashfs-root/with space -> not a link
lrwxrwxrwx root/root                27 2026-11-21 04:51 squashfs-root/link -> usr/lib/a -> b
crw-rw-rw- root/root           1,   3 2026-11-21 04:51 squashfs-root/dev/null
-rwsr-xr-x root/shadow              10 2026-11-21 04:51 squashfs-root/gone
"""
FACTS = {
    "/": "drwxr-xr-x root/root",
    "/same": "-rwxr-xr-x root/root 630",
    "/with space -> not a link": "-rw-r--r-- root/root 5",
    "/link": "lrwxrwxrwx root/root 27 -> usr/lib/a -> b",
    "/dev/null": "crw-rw-rw- root/root 1,   3",
    "/gone": "-rwsr-xr-x root/shadow 10",
}


def test_a_listing_is_read_with_links_devices_and_odd_names():
    assert {path: entry.facts for path, entry in parse_listing(LISTING).items()} == FACTS


def test_contents_decide_of_files_whose_sizes_are_the_same_and_times_of_none():
    later = LISTING.replace("usr/lib/a -> b", "usr/lib/c").replace("/gone", "/new")
    before, after = parse_listing(LISTING), parse_listing(later.replace("11-21", "11-22"))
    changes = compare_files(before, after, lambda path: "other" if path == "/same" else "")
    assert [(one.name, one.before, one.after) for one in changes] == [
        ("/gone", FACTS["/gone"], ""),
        ("/link", FACTS["/link"], "lrwxrwxrwx root/root 27 -> usr/lib/c"),
        ("/new", "", FACTS["/gone"]),
        ("/same", FACTS["/same"], "other"),
    ]


def test_names_and_variables_are_compared():
    scripts = ["#!/bin/sh\nexport PATH=/a:$PATH\nexport B=1\n", "export B=2\nif x; then\n  C='3'\n"]
    before = variables(scripts)
    assert before == {"PATH": "/a:$PATH", "B": "2", "C": "'3'"}
    changes = compare_values("environment", {**before, "gone": "1"}, {**before, "B": "4", "x": "1"})
    found = [(one.name, one.before, one.after) for one in changes]
    assert found == [("B", "2", "4"), ("gone", "1", ""), ("x", "", "1")]
