"""Builds in layers, by the real kernel: what runs again, what is kept, what is in the image, and what a fault leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from msgspec.structs import replace

from tests.cluster.image_fixtures import Tiny, outcomes, steps
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


def kept(store: Tiny, kind: str) -> list[Path]:
    entries = (store.images / ".cache" / kind).glob("[!.]*")
    return sorted(path for path in entries if path.suffix != ".json")


def test_only_the_steps_from_the_first_changed_one_run_again(tiny: Tiny) -> None:
    def recipe(third: str) -> Path:
        last = ("fourth", "cat /third > /fourth")
        more = steps(("second", "echo 2 > /second"), ("third", third), last)
        return tiny.recipe("echo 1 > /first", more=more)

    first = tiny.built(recipe("echo 3 > /third"))
    names = ("base", "act", "second", "third", "fourth", "pack", "checks")
    assert first == dict.fromkeys(names, "done")
    again = tiny.built(recipe("echo three > /third"))
    assert again == {**first, **dict.fromkeys(names[:3], "kept")}
    files = ("/first", "/second", "/third", "/fourth")
    assert tiny.inside("/bin/cat", *files) == "1\n2\nthree\nthree\n"
    back = tiny.built(recipe("echo 3 > /third"))
    assert back == {**dict.fromkeys(first, "kept"), "pack": "done", "checks": "done"}
    assert tiny.inside("/bin/cat", "/fourth") == "3\n"
    assert set(tiny.built(recipe("echo 3 > /third"), "--force").values()) == {"done"}


def test_the_image_is_what_apptainer_makes_of_its_definition(store: Tiny) -> None:
    """Deleted and replaced names, directories that come back, links, owners and modes."""
    first = """\
mkdir -p /opt/d/sub /opt/other; echo 1 > /opt/d/a; echo 1 > /opt/d/sub/b; echo 1 > /opt/other/c
ln -s a /opt/d/link 2>/dev/null || true; chown 33:44 /opt/d/sub/b; mkdir /opt/gone; echo x > /opt/gone/x"""
    replaced = "rm -r /opt/d; mkdir /opt/d /opt/d/sub; echo 2 > /opt/d/new; rm -r /opt/gone"
    back = "mkdir /opt/gone; rm /opt/other/c; mkdir /opt/other/c; echo 3 > /opt/other/c/file; chown 7:7 /opt/other"
    last = "rm -r /opt/other/c; echo 4 > /opt/other/c; echo 5 > /bin/false; rm /bin/env; mkdir -p /opt/d/sub/deep/er"
    more = steps(("replace", replaced), ("back", back), ("last", last))
    store.built(store.recipe(*first.splitlines(), more=more))
    layers = store.files()
    assert {"/opt/d/new", "/opt/d/sub/deep/er", "/opt/gone", "/opt/other/c"} <= set(layers)
    gone = {"/opt/d/a", "/opt/d/sub/b", "/opt/gone/x", "/bin/env", "/opt/other/c/file"}
    assert not gone & set(layers)
    assert layers["/opt/other"].endswith(" 7/7")
    shown = store.inside("/bin/ls", "/opt/d", "/opt/gone").split()
    assert sorted(shown) == "/opt/d: /opt/gone: new sub".split()
    definition = store.place / "tiny.def"
    definition.write_text(store.run("render", store.place / "tiny.toml").stdout)
    words = [*store.become, "apptainer", "build", "--force"]
    words += ("--fakeroot",) if store.become else build_options()
    subprocess.run([*words, store.sif, definition], env=store.environment(), check=True)
    flat = store.files()
    unequal = {name for name in layers.keys() | flat.keys() if layers.get(name) != flat.get(name)}
    # What says when and how it was built.
    assert {name for name in unequal if not name.startswith("/.singularity.d/")} == set()


def test_apptainer_sees_labels_definition_and_runscript(built_store: Tiny) -> None:
    def said(*words: str) -> str:
        command = ["apptainer", *words, str(built_store.sif)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    (data,) = json.loads(said("inspect", "--json", "--labels"))["data"].values()
    assert data["labels"]["toolkit.recipe"] == "tiny"
    assert "Bootstrap: localimage" in said("inspect", "--deffile")
    assert 'exec "$@"' in said("inspect", "--runscript")
    assert "toolkit-check: greeting passed" in said("test")


def test_what_is_broken_in_the_cache_is_noticed_and_made_again(tiny: Tiny) -> None:
    recipe = tiny.recipe("echo 1 > /first", more=steps(("second", "echo 2 > /second")))
    tiny.built(recipe)
    for path in (*kept(tiny, "bases"), kept(tiny, "layers")[0]):
        os.truncate(path, path.stat().st_size - 4096)
    tiny.sif.unlink()
    assert tiny.built(recipe)["base"] == "done"
    assert tiny.inside("/bin/cat", "/first", "/second") == "1\n2\n"


def _direct(store: Tiny, common: str, *further: str, fresh: bool = False) -> dict[str, str]:
    """Build steps with a build stage among them, which no block of a tiny base has; what became of each.

    Args:
        further: lines of another step of the build stage.
    """
    lines = (f"cat /common > {WHEELS}/x.whl", *further)
    stage = [
        Step(name=f"compile{number}", lines=(f"mkdir -p {WHEELS}", line))
        for number, line in enumerate(lines)
    ]
    # The last one ends with a further line, as those of recipes do.
    stage[-1] = replace(stage[-1], lines=(*stage[-1].lines, f"echo > {WHEELS}/packages"))
    made = Plan(
        name="tiny",
        base=LocalImage(path=store.base),
        prelude=("umask 022",),
        common=(Step(name="common", detail="", lines=(f"echo {common} > /common",)),),
        build=tuple(stage),
        final=(
            Step(name="take", detail="", lines=(f"cat {WHEELS}/x.whl > /taken",), products=True),
            Step(name="clean", detail="", lines=("true",)),
        ),
        files={f"{CHECKS}/run": "#!/bin/sh\nexit 0\n"},
    )
    with workspace(store.images) as place:
        follower = Follower("tiny", store.images / "tiny.log", Silent())
        task = BuildTask(with_keys(made), None, None, place, follower, fresh)
        outcome = layered.build(task, HostConfig())
        place.sif.replace(store.sif)
    return {step: "kept" if step in outcome.cached else "done" for step in follower.seconds}


def test_what_was_compiled_is_used_again_on_the_very_same_layers(tiny: Tiny) -> None:
    ran = dict.fromkeys(("base", "common", "compile0", "take", "clean", "pack"), "done")
    assert _direct(tiny, "1") == ran
    assert _direct(tiny, "1", fresh=True) == {**ran, "compile0": "kept"}
    assert tiny.inside("/bin/cat", "/taken") == "1\n"
    assert _direct(tiny, "2") == {**ran, "base": "kept"}
    # Another image compiles the same, and then more: its steps see what was compiled.
    more = _direct(tiny, "2", f"cat {HOST_WHEELS}/x.whl >> {WHEELS}/x.whl")
    assert (more["common"], more["compile0"], more["compile1"]) == ("kept", "done", "done")
    assert tiny.inside("/bin/cat", "/taken") == "2\n2\n"
    shutil.copytree(tiny.base, tiny.place / "other-base", symlinks=True)
    (tiny.place / "other-base/newer").touch()
    tiny.base = str(tiny.place / "other-base")
    assert _direct(tiny, "2", fresh=True) == ran
    assert tiny.inside("/bin/cat", "/taken") == "2\n"


def test_two_builds_with_the_same_steps_at_once(tiny: Tiny) -> None:
    commands = ("sleep 1", "echo 1 > /first")
    first = tiny.start("build", tiny.recipe(*commands))
    other = tiny.built(tiny.recipe(*commands, name="other"))
    _, said = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert (outcomes(said)["checks"], other["checks"]) == ("done", "done")
    assert tiny.built(tiny.recipe(*commands, name="third"))["act"] == "kept"


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
    slow.communicate(timeout=120)
    assert slow.returncode == 0
    assert built.run("cache", "--clear").returncode == 0
    assert kept(built, "bases") == kept(built, "layers") == []
    assert built.inside("/bin/true") == ""
