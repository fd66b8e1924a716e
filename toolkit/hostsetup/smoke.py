"""Start a tiny container of this machine's own shell by Apptainer, without any download."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from toolkit import shell

_SAY = ("/bin/sh", "-c", "read word </etc/smoke && echo $word")
_NOBODY = "65534"
_BECOME_NOBODY = ("setpriv", "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups")


def complaint(runtime: str, *, as_user: bool = False) -> str:
    """Return why a program cannot run in a container; empty if it can. Takes 0.1 s.

    Args:
        runtime: path of Apptainer.
        as_user: root tries it as an ordinary user.
    """
    # On disk, since /tmp may be small or noexec; ordinary users read it.
    with tempfile.TemporaryDirectory(prefix="toolkit-smoke-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        root = _tiny_root(place)
        home = place / "home"
        home.mkdir(mode=0o777)
        home.chmod(0o777)
        settings = ("env", f"HOME={home}", f"APPTAINER_CACHEDIR={home}")
        words = (*_BECOME_NOBODY, *settings) if as_user else settings
        argv = [*words, runtime, "exec", "--no-home", root, *_SAY]
        answer = shell.run(argv, cwd=place, check=False, timeout=120)
    if answer.stdout.strip() == "runs":
        return ""
    return "; ".join(answer.tail(2)) or f"exit code {answer.returncode}"


def _tiny_root(place: Path) -> Path:
    """Create a root directory with a shell, and the libraries that it needs."""
    root = place / "root"
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "root", "home", "var/tmp", "usr"):
        (root / name).mkdir(parents=True)
    libraries = re.findall(r"(/\S+)", shell.run(["ldd", "/bin/sh"]).stdout)
    for path in ("/bin/sh", *libraries):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    files = {
        "passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "group": "root:x:0:\n",
        "smoke": "runs\n",
        **dict.fromkeys(("hosts", "resolv.conf"), ""),
    }
    for name, text in files.items():
        (root / "etc" / name).write_text(text)
    shell.run(["chmod", "-R", "a+rX", root])  # whatever our umask is
    return root
