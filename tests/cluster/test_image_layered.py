"""Builds in layers, by the real kernel: what runs again, what is kept, what is in the image, and what a fault leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cluster.image_fixtures import Tiny
from tests.cluster.ranks import wait_for
from tests.progress import Silent
from toolkit.images.builder.apptainer import layered
from toolkit.images.builder.follow import Follower
from toolkit.images.builder.remote_base import BuildTask
from toolkit.images.host.host_config import HostConfig
from toolkit.images.host.privilege import build_options
from toolkit.images.host.workspace import workspace
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.block import CHECKS, HOST_WHEELS, WHEELS
from toolkit.images.recipe.plan import Plan, Step, with_keys

STEP = '[[steps]]\nblock = "run"\nname = "{name}"\ncommands = [{commands}]\n'


def steps(*named: tuple[str, str]) -> str:
    """Further steps of a recipe: a name and a command each."""
    return "".join(STEP.format(name=name, commands=json.dumps(command)) for name, command in named)


def outcomes(stderr: str) -> dict[str, str]:
    """What became of each step: done, kept, failed."""
    return {
        found[1]: found[2]
        for found in re.finditer(
            r"^(\S+) .* (done|kept|failed|stopped) +\d+:\d\d$", stderr, re.MULTILINE
        )
    }


def built(store: Tiny, recipe: Path, *options: str) -> dict[str, str]:
    done = store.run("build", recipe, *options)
    assert done.returncode == 0, done.stderr
    return outcomes(done.stderr)


def kept(store: Tiny, kind: str) -> list[Path]:
    return sorted(
        path for path in (store.images / ".cache" / kind).glob("[!.]*") if path.suffix != ".json"
    )


def tree(store: Tiny, image: str = "tiny") -> dict[str, tuple[str, ...]]:
    """Everything in an image: type, mode, owner, size, links and where a link leads; by FUSE, as no container shows it."""
    form = "%p\\t%y\\t%m\\t%U\\t%G\\t%l\\t%s\\n"
    place = store.place / f"mounted-{image}"
    place.mkdir()
    header = subprocess.run(
        ["apptainer", "sif", "list", store.images / f"{image}.sif"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    offset = re.search(r"(\d+)-\d+ *\|FS", header)
    assert offset, header
    subprocess.run(
        ["squashfuse", "-o", f"offset={offset[1]}", store.images / f"{image}.sif", place],
        check=True,
    )
    try:
        said = subprocess.run(
            ["find", ".", "-printf", form], cwd=place, capture_output=True, text=True, check=True
        ).stdout
    finally:
        subprocess.run(
            ["fusermount3" if shutil.which("fusermount3") else "fusermount", "-u", place],
            check=True,
        )
        place.rmdir()
    rows = (line.split("\t") for line in said.splitlines())
    # The size of a directory is how it is stored.
    return {row[0]: tuple(row[1:-1] if row[1] == "d" else row[1:]) for row in rows}


def test_only_the_steps_from_the_first_changed_one_run_again(tiny: Tiny) -> None:
    def recipe(third: str) -> Path:
        more = steps(
            ("second", "echo 2 > /second"), ("third", third), ("fourth", "cat /third > /fourth")
        )
        return tiny.recipe("echo 1 > /first", more=more)

    first = built(tiny, recipe("echo 3 > /third"))
    assert first == dict.fromkeys(
        ("base", "act", "second", "third", "fourth", "pack", "checks"), "done"
    )
    again = built(tiny, recipe("echo three > /third"))
    assert again == {**first, **dict.fromkeys(("base", "act", "second"), "kept")}
    assert (
        tiny.inside("/bin/cat", "/first", "/second", "/third", "/fourth") == "1\n2\nthree\nthree\n"
    )
    back = built(tiny, recipe("echo 3 > /third"))
    assert back == {**dict.fromkeys(first, "kept"), "pack": "done", "checks": "done"}
    assert tiny.inside("/bin/cat", "/fourth") == "3\n"
    assert set(built(tiny, recipe("echo 3 > /third"), "--force").values()) == {"done"}


def test_the_image_is_what_apptainer_makes_of_its_definition(store: Tiny) -> None:
    """Deleted and replaced names, directories that come back, links, owners and modes."""
    commands = (
        "mkdir -p /opt/d/sub /opt/other; echo 1 > /opt/d/a; echo 1 > /opt/d/sub/b; echo 1 > /opt/other/c",
        "ln -s a /opt/d/link 2>/dev/null || true; chown 33:44 /opt/d/sub/b; mkdir /opt/gone; echo x > /opt/gone/x",
    )
    more = steps(
        ("replace", "rm -r /opt/d; mkdir /opt/d /opt/d/sub; echo 2 > /opt/d/new; rm -r /opt/gone"),
        (
            "back",
            "mkdir /opt/gone; rm /opt/other/c; mkdir /opt/other/c; echo 3 > /opt/other/c/file; chown 7:7 /opt/other",
        ),
        (
            "last",
            "rm -r /opt/other/c; echo 4 > /opt/other/c; echo 5 > /bin/false; rm /bin/env; mkdir -p /opt/d/sub/deep/er",
        ),
    )
    built(store, store.recipe(*commands, more=more))
    layered = tree(store)
    assert {"./opt/d/new", "./opt/d/sub/deep/er", "./opt/gone", "./opt/other/c"} <= set(layered)
    assert not {
        "./opt/d/a",
        "./opt/d/sub/b",
        "./opt/gone/x",
        "./bin/env",
        "./opt/other/c/file",
    } & set(layered)
    assert layered["./opt/other"][2:4] == ("7", "7")
    assert (
        sorted(store.inside("/bin/ls", "/opt/d", "/opt/gone").split())
        == "/opt/d: /opt/gone: new sub".split()
    )
    definition, image = store.place / "tiny.def", store.images / "tiny.sif"
    definition.write_text(store.run("render", store.place / "tiny.toml").stdout)
    words = [*store.become, "apptainer", "build", "--force"]
    words += ("--fakeroot",) if store.become else build_options()
    subprocess.run([*words, image, definition], env=store.environment(), check=True)
    flat = tree(store)
    unequal = {name for name in layered.keys() | flat.keys() if layered.get(name) != flat.get(name)}
    # What says when and how it was built.
    assert {name for name in unequal if not name.startswith("./.singularity.d/")} == set()


def test_apptainer_sees_labels_definition_and_runscript(built_store: Tiny) -> None:
    image = str(built_store.images / "tiny.sif")

    def said(*options: str) -> str:
        return subprocess.run(
            ["apptainer", "inspect", *options, image], capture_output=True, text=True, check=True
        ).stdout

    assert (
        json.loads(said("--json", "--labels"))["data"]["attributes"]["labels"]["toolkit.recipe"]
        == "tiny"
    )
    assert "toolkit.recipe: tiny" in said("--labels")
    assert "Bootstrap: localimage" in said("--deffile")
    assert 'exec "$@"' in said("--runscript")
    assert subprocess.run(["apptainer", "run", image, "/bin/true"], check=False).returncode == 0
    assert (
        subprocess.run(["apptainer", "test", image], check=False, capture_output=True).returncode
        == 0
    )


def test_what_is_broken_in_the_cache_is_noticed_and_made_again(tiny: Tiny) -> None:
    recipe = tiny.recipe("echo 1 > /first", more=steps(("second", "echo 2 > /second")))
    built(tiny, recipe)
    (base,), layers, (image,) = kept(tiny, "bases"), kept(tiny, "layers"), tiny.images.glob("*.sif")
    os.truncate(layers[0], layers[0].stat().st_size - 4096)
    os.truncate(base, base.stat().st_size - 4096)
    image.unlink()
    assert built(tiny, recipe)["base"] == "done"
    assert tiny.inside("/bin/cat", "/first", "/second") == "1\n2\n"


def _build_stage(*lines: str) -> tuple[Step, ...]:
    """Return a step for each line; the last one ends with a further line, as those of recipes do."""
    steps = [
        Step(name=f"compile{number}", lines=(f"mkdir -p {WHEELS}", line))
        for number, line in enumerate(lines)
    ]
    return (*steps[:-1], replace(steps[-1], lines=(*steps[-1].lines, f"echo > {WHEELS}/packages")))


def _direct(store: Tiny, common: str, *further: str, fresh: bool = False) -> dict[str, str]:
    """Build steps with a build stage among them, which no block of a tiny base has; what became of each.

    Args:
        further: lines of another step of the build stage.
    """
    made = Plan(
        name="tiny",
        base=LocalImage(path=store.base),
        prelude=("umask 022",),
        common=(Step(name="common", detail="", lines=(f"echo {common} > /common",)),),
        build=_build_stage(f"cat /common > {WHEELS}/x.whl", *further),
        final=(
            Step(name="take", detail="", lines=(f"cat {WHEELS}/x.whl > /taken",), products=True),
            Step(name="clean", detail="", lines=("true",)),
        ),
        files={f"{CHECKS}/run": "#!/bin/sh\nexit 0\n"},
    )
    with workspace(store.images) as place:
        log = store.images / "tiny.log"
        follower = Follower("tiny", log, Silent())
        task = BuildTask(with_keys(made), None, None, place, follower, fresh)
        outcome = layered.build(task, HostConfig())
        place.sif.replace(store.images / "tiny.sif")
    return {step: "kept" if step in outcome.cached else "done" for step in follower.seconds}


def test_what_was_compiled_is_used_again_on_the_very_same_layers(tiny: Tiny) -> None:
    ran = dict.fromkeys(("base", "common", "compile0", "take", "clean", "pack"), "done")
    assert _direct(tiny, "1") == ran
    assert tiny.inside("/bin/cat", "/taken") == "1\n"
    assert _direct(tiny, "1", fresh=True) == {**ran, "compile0": "kept"}
    assert tiny.inside("/bin/cat", "/taken") == "1\n"
    assert _direct(tiny, "2") == {**ran, "base": "kept"}
    assert _direct(tiny, "2", fresh=True) == {**ran, "compile0": "kept"}
    # Another image compiles the same, and then more: its steps see what was compiled.
    more = _direct(tiny, "2", f"cat {HOST_WHEELS}/x.whl >> {WHEELS}/x.whl")
    assert (more["common"], more["compile0"], more["compile1"]) == ("kept", "done", "done")
    assert tiny.inside("/bin/cat", "/taken") == "2\n2\n"
    shutil.copytree(tiny.base, tiny.place / "other-base", symlinks=True)
    (tiny.place / "other-base/newer").touch()
    tiny.base = str(tiny.place / "other-base")
    assert _direct(tiny, "2", fresh=True) == ran
    assert tiny.inside("/bin/cat", "/taken") == "2\n"


def test_steps_before_one_that_fails_are_kept(tiny: Tiny) -> None:
    recipe = tiny.recipe("echo 1 > /first", more=steps(("second", "cat /missing")))
    failed = tiny.run("build", recipe)
    assert failed.returncode == 74
    assert "the step second failed" in failed.stderr
    assert "command: cat /missing" in failed.stderr
    assert len(kept(tiny, "layers")) == 1
    mended = built(tiny, tiny.recipe("echo 1 > /first", more=steps(("second", "true"))))
    assert (mended["act"], mended["second"]) == ("kept", "done")


def test_steps_before_one_that_is_killed_are_kept(tiny: Tiny) -> None:
    recipe = tiny.recipe("echo 1 > /first", more=steps(("second", "true"), ("slow", "sleep 300")))
    process = tiny.started(recipe, until="+ sleep 300")
    notes = tiny.images / ".cache/layers"  # a layer counts with its note, which is written last
    wait_for(lambda: list(notes.glob("[!.]*.json")), "the first layer")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    wait_for(lambda: not tiny.processes(), "the end of it")
    again = built(
        tiny, tiny.recipe("echo 1 > /first", more=steps(("second", "true"), ("slow", "true")))
    )
    assert (again["base"], again["act"]) == ("kept", "kept")


def test_two_builds_with_the_same_steps_at_once(tiny: Tiny) -> None:
    first = tiny.start("build", tiny.recipe("sleep 1", "echo 1 > /first"))
    other = built(tiny, tiny.recipe("sleep 1", "echo 1 > /first", name="other"))
    assert first.wait(120) == 0
    first.communicate()
    assert other["checks"] == "done"
    assert set(
        outcomes(
            tiny.run("build", tiny.recipe("sleep 1", "echo 1 > /first", name="third")).stderr
        ).values()
    ) == {"kept", "done"}


def test_the_caches_are_shown_and_cleared(built: Tiny) -> None:
    shown = json.loads(built.run("cache", "--json").stdout)
    assert sorted({entry["kind"] for entry in shown}) == ["bases", "layers"]
    assert [entry["note"]["about"] for entry in shown if entry["kind"] == "layers"] == ["act"]
    (built.images / ".cache/layers/left-by-a-killed-build.sqfs").write_bytes(b"x")
    slow = built.started(built.recipe("sleep 300 || true"), until="+ sleep 300")
    refused = built.run("cache", "--clear")
    assert refused.returncode == 75
    assert "a build is using the caches" in refused.stderr
    built.wake()
    assert slow.wait(120) == 0
    slow.communicate()
    assert built.run("cache", "--clear").returncode == 0
    assert kept(built, "bases") == kept(built, "layers") == []
    assert built.inside("/bin/true") == ""


def test_a_full_disk_while_the_image_is_put_together(tiny: Tiny) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    shutil.rmtree(tiny.images)
    tiny.images.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=13m,mode=755", "tmpfs", str(tiny.images)], check=True
    )
    try:
        recipe = tiny.recipe("cat /bin/* /lib/*/* > /large")
        recipe.write_text(
            recipe.read_text().replace("image = 10", "image = 1").replace("build = 50", "build = 1")
        )
        done = tiny.run("build", recipe)
        assert done.returncode == 73, done.stderr
        assert tiny.run("path", "tiny").returncode == 67
    finally:
        subprocess.run(["umount", "-l", str(tiny.images)], check=True)
