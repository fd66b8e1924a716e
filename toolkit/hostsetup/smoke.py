"""Test Apptainer on a tiny image of this machine's own shell, without any download."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.quoting import shell_words

_SAY = ("/bin/sh", "-c", "read word </etc/smoke && echo $word")
_NOBODY = "65534"
_PATH = re.compile(r"(/\S+)")


def root_exec(runtime: str) -> Literal["works", "fails"]:
    """Return whether root can run a program in a container; takes 0.1 s."""
    with _workplace() as place:
        root = _tiny_root(place)
        (root / "etc/smoke").write_text("built\n")
        answer = shell.run([runtime, "exec", root, *_SAY], check=False, timeout=60)
        return "works" if answer.stdout.strip() == "built" else "fails"


def run_smoke_tests(runtime: str) -> str | None:
    """Build an image as root, run it as root, run it as an ordinary user.

    Returns:
        The reason why ordinary users cannot run images here, or None.

    Raises:
        CommandFailedError: root cannot build or run; with Apptainer's output.
    """
    with _workplace() as place:
        image = _build(runtime, place)
        _expect(
            shell.run([runtime, "exec", image, *_SAY], check=False, timeout=120),
            "root cannot run an image here",
        )
        return _as_ordinary_user(runtime, image, place)


@contextmanager
def _workplace() -> Iterator[Path]:
    """Create a directory on disk that other users can read; /tmp may be small or noexec."""
    with tempfile.TemporaryDirectory(prefix="toolkit-smoke-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _tiny_root(place: Path) -> Path:
    """Create a root directory with a shell, and the libraries that it needs."""
    root = place / "root"
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "root", "home", "var/tmp", "usr"):
        (root / name).mkdir(parents=True)
    libraries = _PATH.findall(shell.run(["ldd", "/bin/sh"]).stdout)
    for path in ("/bin/sh", *libraries):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf"):
        (root / "etc" / name).touch()
    return root


def _build(runtime: str, place: Path) -> Path:
    definition, image = place / "tiny.def", place / "tiny.sif"
    definition.write_text(
        f"Bootstrap: localimage\nFrom: {_tiny_root(place)}\n%post\n    echo built >/etc/smoke\n"
    )
    answer = shell.run(
        [runtime, "build", "--fakeroot", image, definition], check=False, timeout=300
    )
    if not answer.ok or not image.exists():
        raise CommandFailedError(
            "root cannot build an image here", place=shell_words(answer.argv), details=answer.tail()
        )
    image.chmod(0o644)  # whatever our umask is: an ordinary user is to run it
    return image


def _expect(answer: shell.Result, cause: str) -> None:
    if answer.stdout.strip() != "built":
        raise CommandFailedError(cause, place=shell_words(answer.argv), details=answer.tail())


def _as_ordinary_user(runtime: str, image: Path, place: Path) -> str | None:
    home = place / "home"
    home.mkdir()
    shutil.chown(home, int(_NOBODY), int(_NOBODY))
    become = [
        "setpriv",
        "--reuid",
        _NOBODY,
        "--regid",
        _NOBODY,
        "--clear-groups",
        "env",
        f"HOME={home}",
        f"APPTAINER_CACHEDIR={home}",
    ]
    answer = shell.run(
        [*become, runtime, "exec", "--no-home", image, *_SAY], cwd=home, check=False, timeout=120
    )
    return (
        None
        if answer.stdout.strip() == "built"
        else "; ".join(answer.tail(2)) or f"exit code {answer.returncode}"
    )
