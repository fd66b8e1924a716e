"""Imported Dockerfiles, built both ways: by Docker itself and from our recipe. File trees and environments are the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.docked_fixtures import Docked, store_of
from tests.cluster.engine_fixtures import TestEngine, TestRegistry, put_tiny
from tests.cluster.image_fixtures import copy_program
from tests.cluster.trees import docker_tree, environment_of, programs_environment, sif_tree
from toolkit.images.host import host_config as host

_PROGRAMS = "tar gzip base64 mktemp dirname mv setpriv getent cut bash sort chmod ln touch"
BASE = "registry.example.org/stand-in/importing:1"

ORDER = """\
ARG BASE=importing:1
FROM registry.example.org/stand-in/$BASE
ARG VERSION=1.2 EMPTY
ENV X=/opt/x LATER=$LATER_UNSET
ENV PATH=$X/bin:$PATH X2="$X two  words" Y=${X:-no} Z=${EMPTY:+set}
RUN echo "$X|$X2|$Y|$Z|$VERSION|${EMPTY-unset}|$LATER" > /first
ENV X=/changed
RUN echo "$X|$X2|$HOME|$(pwd)" > /second; false; true
WORKDIR work
WORKDIR deeper/./x/..
RUN pwd > here && cd / && pwd > there-is-not-here
RUN pwd > again
COPY --chmod=750 tool.sh data/ /srv/files/
COPY one /srv/named
COPY one *.txt sub/
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN a=(1 2 3); echo "${#a[@]} ${a[*]/2/two}" > /bash
RUN ["/bin/sh", "-c", "echo \\"exec $X\\" > /exec"]
ENV QUOTED='single $X' DOLLAR=\\$X BRACES="{{x}}" SPACE=a\\ b
USER worker
RUN id -u > /tmp/worker && id -g >> /tmp/worker && echo "$HOME" >> /tmp/worker
USER 1234:77
RUN id > /tmp/number
COPY --chown=worker:workers one /srv/owned
USER root
ARG VERSION=2
RUN echo "$VERSION \\
# a comment within
    on a second line" > /joined
CMD ["true"]
EXPOSE 80
"""
ODD = """\
FROM registry.example.org/stand-in/importing:1
ENV legacy a  b "c"
RUN echo one && \\
    echo "back\\slash $legacy" > /escaped
RUN	printf '%s\\n' "a	tab" '{{ braces }}' "it's" > /odd
RUN umask > /umask; ln -s /odd /link; ln /odd /hard; mkdir -m 700 /closed; touch '/a b'
WORKDIR /srv
COPY . .
ENV LIST=one\\
two
"""


@pytest.fixture(scope="module")
def importing_base(
    docker_engine: TestEngine,
    registry: TestRegistry,
    tiny_base: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """A handful of programs more than tiny, in the registry, and in the engine under the name of the Dockerfiles."""
    base = tmp_path_factory.mktemp("base")
    subprocess.run(["cp", "-a", f"{tiny_base}/.", base], check=True)
    for program in _PROGRAMS.split():
        copy_program(program, base)
    (base / "bin/pip").unlink()  # a stand-in, of which no check can tell what is installed
    (base / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nworker:x:501:502:worker:/home/worker:/bin/sh\n"
    )
    (base / "etc/group").write_text("root:x:0:\nworkers:x:502:\nmore:x:503:worker\n")
    (base / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\n")
    library = next(Path("/lib").glob("*/libnss_files.so.2"), None)
    if library is not None:
        subprocess.run(["cp", "--parents", library, base], check=True)
    (base / "tmp").chmod(0o1777)
    put_tiny(docker_engine, str(base), f"{registry.name}/stand-in/importing:1")
    docker_engine.client("tag", f"{registry.name}/stand-in/importing:1", BASE)
    return BASE


@pytest.fixture
def store(
    docker_engine: TestEngine, registry: TestRegistry, importing_base: str
) -> Iterator[Docked]:
    with store_of(docker_engine, registry, importing_base) as made:
        yield made


@pytest.fixture
def context(store: Docked) -> Path:
    """Files of many kinds beside a Dockerfile."""
    place = store.place / "context"
    (place / "data/sub").mkdir(parents=True)
    (place / "one").write_text("one\n")
    (place / "a.txt").write_bytes(b"\0binary\xff\n")
    (place / "b.txt").write_text("")
    (place / "tool.sh").write_text("#!/bin/sh\nexec true\n")
    (place / "tool.sh").chmod(0o755)
    (place / "data/kept").write_text("kept\n" * 2000)
    (place / "data/ignored.log").write_text("not copied")
    (place / "data/sub/deep").write_text("deep")
    (place / "data/link").symlink_to("kept")
    (place / ".dockerignore").write_text("# comment\n**/*.log\n.dockerignore\n")
    os.chmod(place / "data/sub", 0o711)  # noqa: PTH101
    return place


def both_make_the_same(
    store: Docked, engine: TestEngine, name: str, context: Path, *options: str
) -> None:
    """Docker itself and our recipe make the same files and the same environment."""
    words = ("import", context / "Dockerfile", "--name", name, "--directory", store.place)
    imported = store.run(*words)
    assert imported.returncode == 0, imported.stderr
    built = store.run("build", store.place / f"{name}.toml", *options, seconds=600)
    assert built.returncode == 0, built.stderr
    sif, by_docker = store.images / f"{name}.sif", f"by-docker:{name}"
    engine.client("build", "-q", "--network", "host", "-t", by_docker, str(context))
    # Apptainer shows an image another /tmp, also while it builds it flat.
    unlike = ("tmp", "var/tmp") if "--flat" in options else ()
    ours, theirs = (
        {path: entry for path, entry in tree.items() if not path.startswith(unlike)}
        for tree in (sif_tree(sif), docker_tree(engine, by_docker))
    )
    paths = ours.keys() | theirs.keys()
    different = {path for path in paths if ours.get(path) != theirs.get(path)}
    assert {path: (theirs.get(path), ours.get(path)) for path in different} == {}
    run = "run --rm --network none --user 0 --entrypoint env".split()
    assert environment_of(sif) == programs_environment(engine.client(*run, by_docker))


@pytest.mark.parametrize("text", [ORDER, ODD], ids=["order", "odd"])
@pytest.mark.parametrize("how", [(), ("--flat",), ("--engine", "docker")], ids=str)
def test_a_dockerfile_and_its_recipe_give_the_same_image(store, context, docker_engine, text, how):
    (context / "Dockerfile").write_text(text)
    both_make_the_same(store, docker_engine, "tiny", context, *how)


DOCKERFILES = Path(__file__).parent.parent / "dockerfiles"


@pytest.fixture(scope="module")
def debian(docker_engine: TestEngine, registry: TestRegistry) -> str:
    """Debian with Python and pip, as an image in the registry and in the engine, able to reach what this machine reaches."""
    root = Path(tempfile.mkdtemp(prefix="toolkit-test-debian-", dir="/var/tmp"))
    root.chmod(0o755)  # it becomes the mode of / in the image, where users are not root
    packages = "--include=python3,python3-pip,python3-venv,ca-certificates,tzdata"
    words = ("debootstrap", "--variant=minbase", packages, "bookworm")
    mirror = host.debian_mirror("bookworm")
    subprocess.run([*words, root, mirror], check=True, capture_output=True)
    authorities = host._certificates(host.read_pip_settings())
    if authorities is not None:
        shutil.copy(authorities, root / "etc/ssl/certs/of-the-host.crt")
        (root / "etc/pip.conf").write_text("[global]\ncert = /etc/ssl/certs/of-the-host.crt\n")
    apt = host.collect_host_config().files.get("apt.conf", "")
    (root / "etc/apt/apt.conf.d/99-host").write_text(apt)
    for empty in ("etc/resolv.conf", "etc/hostname"):
        (root / empty).write_text("")
    tar = ("tar", "-C", root, "--exclude=./var/cache/apt/*", "-c", ".")
    packed = subprocess.run(tar, capture_output=True, check=True).stdout
    subprocess.run(["rm", "-rf", root], check=True)
    name = f"{registry.name}/library/debian:bookworm"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    docker_engine.client("import", "--change", f"ENV PATH={path}", "-", name, input=packed)
    docker_engine.client("push", name)
    docker_engine.client("tag", name, "debian:bookworm")
    return name


@pytest.fixture(scope="module")
def debian_store(
    docker_engine: TestEngine, registry: TestRegistry, debian: str
) -> Iterator[Docked]:
    """One store for all of them: the base is fetched once."""
    with store_of(docker_engine, registry, debian) as made:
        made.extra["TOOLKIT_REGISTRIES"] = f"docker.io={registry.name}"
        yield made


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in DOCKERFILES.glob("*/Dockerfile"))
)
def test_dockerfiles_as_people_write_them(debian_store, docker_engine, name):
    """Ten Dockerfiles with what people do in them."""
    both_make_the_same(debian_store, docker_engine, name, DOCKERFILES / name)
