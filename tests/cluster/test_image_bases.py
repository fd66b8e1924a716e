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

from tests.cluster.image_fixtures import Tiny, steps

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


def _own(store: Tiny) -> str:
    """An image of ours, in layers."""
    path = '[[steps]]\nblock = "env"\nvariables = { PATH = "/opt/base/bin:/usr/sbin:/usr/bin:/sbin:/bin" }\n'
    store.built(store.recipe("true", more=OURS + path, name="under"))
    return f'kind = "localimage"\npath = "{store.images}/under.sif"'


def _foreign(store: Tiny, labels: str = "") -> str:
    """An image that Apptainer built from a definition of somebody's."""
    definition, image = store.place / "base.def", store.place / "base.sif"
    definition.write_text(FOREIGN.format(base=store.base, labels=labels))
    subprocess.run(["apptainer", "build", image, definition], check=True, capture_output=True)
    image.chmod(0o644)
    return f'kind = "localimage"\npath = "{image}"'


def _labelled(store: Tiny) -> str:
    return _foreign(store, "\n%labels\n    toolkit.recipe other\n    of.the.base yes\n")


def _docker(store: Tiny) -> str:
    """An image as `docker save` writes it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as packed:
        packed.add(store.base, ".")
    path = "PATH=/opt/base/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    digest = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    config = {
        **{"architecture": "amd64", "os": "linux"},
        "config": {"Env": [path, "OF_THE_BASE=a b", "TWICE=base"]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["base:1"], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer.getvalue(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    saved = store.place / "base.tar"
    with tarfile.open(saved, "w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return f'kind = "docker"\nimage = "example.com/base:1"\narchive = "docker-archive:{saved}"'


def greeting(store: Tiny) -> Tiny:
    """Give the base of a store a program in a directory of its own."""
    base = store.place / "greeting"
    shutil.copytree(store.base, base, symlinks=True)
    (base / "opt/base/bin").mkdir(parents=True)
    (base / "opt/base/bin/hello").write_text('#!/bin/sh\necho "hello $OF_THE_BASE"\n')
    (base / "opt/base/bin/hello").chmod(0o755)
    store.base = str(base)
    return store


def said(image: Path, *words: str) -> list[str]:
    """What a user of the image gets from a program."""
    command = ["apptainer", "--silent", "exec", "--cleanenv", str(image), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def variables(image: Path) -> dict[str, str]:
    pairs = (line.partition("=")[::2] for line in said(image, "/bin/env") if "=" in line)
    return {name: value for name, value in pairs if not name.startswith(RUNTIME)}


# What sets the variables.
SCRIPTS = (
    "cat /.singularity.d/env/10-docker*.sh /.singularity.d/env/90-environment.sh 2>/dev/null; true"
)
# What Apptainer binds into a flat build, and what says when and how an image was built.
OTHERS = ("/.singularity.d/", "/tmp", "/var/tmp")


@pytest.mark.parametrize(
    ("which", "kind"),
    [("tiny", _own), ("tiny", _labelled), ("tiny", _docker), ("users_tiny", _docker)],
)
def test_an_image_has_what_its_base_has_in_layers_and_flat(which, kind, request):
    store = greeting(request.getfixturevalue(which))
    greeted = 'hello > /greeted; echo "$TWICE" >> /greeted'
    more = MINE + steps(("second", "hello > /second"))
    recipe = store.recipe(greeted, more=more, base=kind(store))
    seen = []
    for options in ((), ("--force", "--flat")):
        store.built(recipe, *options)
        told = variables(store.sif)
        assert told["OF_THE_BASE"] == "a b"
        assert told["MINE"] == '$1 "x"'
        assert told["TWICE"] == "mine", "the recipe's variables come last"
        assert "/opt/base/bin" in told["PATH"].split(":")
        assert store.inside("/bin/cat", "/greeted", "/second") == "hello a b\nbase\nhello a b\n"
        files = {
            name: facts for name, facts in store.files().items() if not name.startswith(OTHERS)
        }
        seen.append((told, said(store.sif, "/bin/sh", "-c", SCRIPTS), files))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("kind", "command", "options"),
    [
        (_foreign, ": > /.singularity.d/env/90-environment.sh", ("--flat",)),
        (_docker, "rm /.singularity.d/env/10-docker2singularity.sh", ()),
    ],
)
def test_an_image_whose_variables_were_lost_fails_its_build(tiny, kind, command, options):
    base = kind(greeting(tiny))
    done = tiny.run("build", tiny.recipe(command, more=MINE, base=base), *options)
    assert done.returncode == 74, done.stderr
    assert "the variable OF_THE_BASE is not set" in done.stderr
    assert "PATH lacks /opt/base/bin" in done.stderr
    assert tiny.left() == ["tiny.failed.log"]


@pytest.mark.parametrize("options", [(), ("--flat",)])
def test_an_image_that_only_root_can_use_fails_its_build(tiny, options):
    """Its steps run as root, whom no mode keeps from anything; its users are others."""
    Path(greeting(tiny).base, "bin/cat").chmod(0o700)
    done = tiny.run("build", tiny.recipe("true", more=MINE, base=_foreign(tiny)), *options)
    assert done.returncode == 74, done.stderr
    assert "the image could not list its variables" in done.stderr
    assert tiny.left() == ["tiny.failed.log"]
