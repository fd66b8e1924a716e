"""An image has the variables and the files of its base, of whatever kind and however it is built; the last check of a build sees to it."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import Tiny
from tests.cluster.test_image_layered import steps, tree

# Of the runtime, not of the image.
RUNTIME = ("APPTAINER_", "SINGULARITY_", "PROMPT_COMMAND", "PS1", "TERM", "PWD", "HOME")
OURS = '[[steps]]\nblock = "env"\nvariables = { OF_THE_BASE = "a b", TWICE = "base" }\n'
MINE = '[[steps]]\nblock = "env"\nvariables = { MINE = "$1 \\"x\\"", TWICE = "mine" }\n'
FOREIGN = """\
Bootstrap: localimage
From: {base}

%environment
    export PATH=/opt/base/bin:$PATH
    if [ -d /nowhere ]; then false; fi
    [ -d /nowhere ] && export NOT_SET=1
    export OF_THE_BASE="a b" TWICE=base
{labels}
%runscript
    echo the base
"""


def _own(store: Tiny, place: Path) -> str:
    """An image of ours, in layers."""
    path = '[[steps]]\nblock = "env"\nvariables = { PATH = "/opt/base/bin:/usr/sbin:/usr/bin:/sbin:/bin" }\n'
    done = store.run("build", store.recipe("true", more=OURS + path, name="under"))
    assert done.returncode == 0, done.stderr
    del place
    return f'kind = "localimage"\npath = "{store.images}/under.sif"'


def _foreign(store: Tiny, place: Path, labels: str = "") -> str:
    """An image that Apptainer built from a definition of somebody's."""
    (place / "base.def").write_text(FOREIGN.format(base=store.base, labels=labels))
    command = ["apptainer", "build", str(place / "base.sif"), str(place / "base.def")]
    subprocess.run(command, check=True, capture_output=True)
    (place / "base.sif").chmod(0o644)
    return f'kind = "localimage"\npath = "{place}/base.sif"'


def _labelled(store: Tiny, place: Path) -> str:
    return _foreign(store, place, "\n%labels\n    toolkit.recipe other\n    of.the.base yes\n")


def _docker(store: Tiny, place: Path) -> str:
    """An image as `docker save` writes it."""
    root = place / "root"
    shutil.copytree(store.base, root, symlinks=True)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as packed:
        packed.add(root, ".")
    environment = [
        "PATH=/opt/base/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "OF_THE_BASE=a b",
        "TWICE=base",
    ]
    config = {
        **{"architecture": "amd64", "os": "linux", "config": {"Env": environment}},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"],
        },
    }
    manifest = [{"Config": "config.json", "RepoTags": ["base:1"], "Layers": ["layer.tar"]}]
    with tarfile.open(place / "base.tar", "w") as archive:
        for name, data in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return f'kind = "docker"\nimage = "example.com/base:1"\narchive = "docker-archive:{place}/base.tar"'


KINDS = {"own": _own, "foreign": _foreign, "labelled": _labelled, "docker": _docker}


@pytest.fixture
def store(tiny: Tiny) -> Tiny:
    return _greeting(tiny)


def _greeting(store: Tiny) -> Tiny:
    """A store whose base has a program in a directory of its own."""
    base = store.place / "greeting"
    shutil.copytree(store.base, base, symlinks=True)
    (base / "opt/base/bin").mkdir(parents=True)
    (base / "opt/base/bin/hello").write_text('#!/bin/sh\necho "hello $OF_THE_BASE"\n')
    (base / "opt/base/bin/hello").chmod(0o755)
    store.base = str(base)
    return store


def recipe_on(store: Tiny, base: str, *commands: str, more: str = "") -> Path:
    path = store.recipe(*commands, more=more)
    text = path.read_text()
    old = text[text.index("kind = ") : text.index("\n[space]")]
    path.write_text(text.replace(old, base))
    return path


def variables(image: Path) -> dict[str, str]:
    """The variables that a user gets."""
    said = subprocess.run(
        ["apptainer", "--silent", "exec", "--cleanenv", image, "/bin/env"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pairs = (line.partition("=")[::2] for line in said.splitlines() if "=" in line)
    return {name: value for name, value in pairs if not name.startswith(RUNTIME)}


def scripts(image: Path) -> list[str]:
    """The lines that set the variables."""
    command = "cat /.singularity.d/env/10-docker*.sh /.singularity.d/env/90-environment.sh 2>/dev/null; true"
    said = subprocess.run(
        ["apptainer", "--silent", "exec", image, "/bin/sh", "-c", command],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [line.strip() for line in said.splitlines() if line.strip()]


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_has_what_its_base_has_in_layers_and_flat(store, kind):
    has_what_its_base_has(store, kind)


def test_an_ordinary_user_builds_on_an_image_of_docker(users_tiny):
    has_what_its_base_has(_greeting(users_tiny), "docker")


def has_what_its_base_has(store: Tiny, kind: str) -> None:
    base = KINDS[kind](store, store.place)
    greeted = 'hello > /greeted; echo "$TWICE" >> /greeted'
    recipe = recipe_on(store, base, greeted, more=MINE + steps(("second", "hello > /second")))
    seen: dict[str, tuple[object, ...]] = {}
    for how in ("layers", "flat"):
        done = store.run("build", recipe, "--force", *(("--flat",) if how == "flat" else ()))
        assert done.returncode == 0, done.stderr
        image = store.images / "tiny.sif"
        told = variables(image)
        assert told["OF_THE_BASE"] == "a b"
        assert told["MINE"] == '$1 "x"'
        assert told["TWICE"] == "mine", "the recipe's variables come last"
        assert "/opt/base/bin" in told["PATH"].split(":")
        assert store.inside("/bin/cat", "/greeted", "/second") == "hello a b\nbase\nhello a b\n"
        files = {
            name: facts
            for name, facts in tree(store).items()
            # Apptainer binds these into a flat build.
            if not name.startswith(("./.singularity.d/", "./tmp", "./var/tmp"))
        }
        seen[how] = (told, scripts(image), files)
    assert seen["layers"] == seen["flat"]


@pytest.mark.parametrize(
    ("kind", "command", "how"),
    [
        ("foreign", ": > /.singularity.d/env/90-environment.sh", "--flat"),
        ("docker", "rm /.singularity.d/env/10-docker2singularity.sh", "--force"),
    ],
)
def test_an_image_whose_variables_were_lost_fails_its_build(tiny, kind, command, how):
    _greeting(tiny)
    recipe = recipe_on(tiny, KINDS[kind](tiny, tiny.place), command, more=MINE)
    done = tiny.run("build", recipe, how)
    assert done.returncode == 74, done.stderr
    assert "the variable OF_THE_BASE is not set" in done.stderr
    assert "PATH lacks /opt/base/bin" in done.stderr
    assert not (tiny.images / "tiny.sif").exists()
    assert (tiny.images / "tiny.failed.log").exists()


@pytest.mark.parametrize("how", ["--force", "--flat"])
def test_an_image_that_only_root_can_use_fails_its_build(tiny, how):
    """Its steps run as root, whom no mode keeps from anything; its users are others."""
    _greeting(tiny)
    Path(tiny.base, "bin/cat").chmod(0o700)
    done = tiny.run("build", recipe_on(tiny, _foreign(tiny, tiny.place), "true", more=MINE), how)
    assert done.returncode == 74, done.stderr
    assert "the image could not list its variables" in done.stderr
    assert not (tiny.images / "tiny.sif").exists()
