"""Stand-ins for NVIDIA's images, in the tests' own registry under NVIDIA's names: their /STAND-IN says what is real in them.

They are made of a handful of this machine's programs and the Python that runs the tests, so that no
network and no minute is needed.
"""

from __future__ import annotations

import compileall
import ensurepip
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from tests.cluster.engine_fixtures import TestEngine, TestRegistry
from tests.cluster.image_fixtures import copy_program
from tests.cluster.standin import wheel

_HERE = Path(wheel.__file__).parent
_PROGRAMS = (
    *"cat chmod cp cut dirname env find grep gzip head id ldconfig ls mkdir nproc rm sed sh sha256sum sort stat tar timeout touch tr true uname wc".split(),
)
_NOT_NEEDED = (
    *"site-packages test tests config-* idlelib tkinter lib2to3 turtledemo ensurepip pydoc_data".split(),
)
_DIRECTORIES = (
    *"bin dev etc mnt opt/nvidia proc root sys tmp usr/bin usr/local/bin var/log var/tmp".split(),
    *"usr/local/cuda/lib64/stubs usr/local/share/stand-in".split(),
)
_DOCKERFILE = """\
FROM stand-in/python
COPY root/ /
LABEL org.opencontainers.image.description="stand-in for an image of NVIDIA, for tests: see /STAND-IN"
ENV PATH=/usr/local/bin:/usr/bin:/bin
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
"""
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Tag -> what the image holds, of the recipes that are built from stand-ins.
_IMAGES = {"pytorch:22.03-py3": "torch", "tensorflow:25.02-tf2-py3": "tensorflow"}


@pytest.fixture(scope="session")
def ngc_stand_ins(docker_engine: TestEngine, registry: TestRegistry, engine_directory: Path) -> str:
    """What ``nvcr.io`` is sent to: the tests' registry, with a stand-in for NGC images that recipes begin with."""
    root = engine_directory / "ngc"
    _python(root)
    pack = ["tar", "-C", str(root), "--owner=0", "--group=0", "-c", "."]
    packed = subprocess.run(pack, capture_output=True, check=True).stdout
    docker_engine.client("import", "-", "stand-in/python", input=packed)
    for name, framework in _IMAGES.items():
        reference = f"{registry.name}/nvidia/{name}"
        with tempfile.TemporaryDirectory(dir=engine_directory) as context:
            _framework(Path(context, "root"), framework)
            Path(context, "Dockerfile").write_text(_DOCKERFILE)
            docker_engine.client("build", "-q", "-t", reference, context)
        docker_engine.client("push", reference)
    shutil.rmtree(root)
    return registry.name


def _python(root: Path) -> None:
    """Programs, and a Python with pip, of this machine; stand-ins before them.

    A virtual environment in /usr/local, since the Python of a Debian has its packages elsewhere
    than one of python.org.
    """
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    for program in _PROGRAMS:
        copy_program(program, root)
    library = root / "opt/python/lib" / _VERSION
    shutil.copytree(
        sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*_NOT_NEEDED)
    )
    for place in ("opt/python/bin", "usr/local/bin"):
        (root / place).mkdir(exist_ok=True)
        shutil.copy(Path(sys.base_prefix, "bin", _VERSION), root / place / "python3")
    (root / "usr/local/pyvenv.cfg").write_text(
        "home = /opt/python/bin\ninclude-system-site-packages = false\n"
    )
    for file in (root / "usr/local/bin/python3", *library.glob("lib-dynload/*.so")):
        _libraries(file, root)
    site = root / "usr/local/lib" / _VERSION / "site-packages"
    site.mkdir(parents=True)
    # The second is Debian's.
    places = (Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels"))
    bundled = next(wheel for place in places for wheel in place.glob("pip-*.whl"))
    with zipfile.ZipFile(bundled) as packed:
        packed.extractall(site)
    unchecked = PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(
        site, quiet=2, workers=0, stripdir=str(root), invalidation_mode=unchecked
    )
    shutil.copy(_HERE / "STAND-IN", root)
    shutil.copy(_HERE / "nvidia_entrypoint.sh", root / "opt/nvidia")
    shutil.copytree(_HERE / "bin", root / "usr/local/bin", dirs_exist_ok=True)
    shutil.copy(_HERE / "wheel.py", root / "usr/local/share/stand-in")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf"):
        (root / "etc" / name).touch()
    # Debian's pip reads this file when it starts.
    authorities = Path("/etc/ssl/certs/ca-certificates.crt")
    if authorities.is_file():
        (root / "etc/ssl/certs").mkdir(parents=True)
        shutil.copy(authorities, root / "etc/ssl/certs")
    (root / "etc/ld.so.conf").write_text("/usr/local/lib\n")
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)


def _libraries(file: Path, root: Path) -> None:
    said = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
    for library in re.findall(r"(/\S+) \(0x", said):
        # Not where a Python's own lie, which may be in somebody's home.
        is_system = library.startswith(("/lib", "/usr/lib"))
        place = library.lstrip("/") if is_system else f"usr/local/lib/{Path(library).name}"
        if not (root / place).exists():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(library).resolve(), root / place)


def _framework(root: Path, framework: str) -> None:
    """Torch alone, or TensorFlow with the Horovod that NVIDIA's images had."""
    site = root / "usr/local/lib" / _VERSION / "site-packages"
    site.mkdir(parents=True)
    for name in ("standin", framework):
        shutil.copy(_HERE / f"site/{name}.py.txt", site / f"{name}.py")
    if framework == "tensorflow":
        text = (site / "tensorflow.py").read_text()
        version = re.findall(r'^__version__ = "(.*)"', text, re.MULTILINE)[0]
        for name, text in wheel.files({"tensorflow": version}).items():
            is_program = name.endswith("/horovodrun")
            target = root / "usr/local/bin/horovodrun" if is_program else site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755)
    (root / "etc/pip").mkdir(parents=True)
    (root / "etc/pip/constraint.txt").touch()
