"""Mount the host configuration into the steps of a build by Docker, without storing any of it.

What was tried with an engine of 20.10:

- A build argument stays in the image's history.
- A copied file stays in its layer, even if a later layer removes it.
- A stage of its own that holds the files, and is mounted, stays in the engine's cache with its
  passwords, and changes the key of a step whenever one of them changes.

So files become *secrets* of the build: mounted for one step only, in memory, in no layer, no
history and no cache key. Secrets are small files. So directories of packages on this machine are
served on a loopback address during the build, at a path that cannot be guessed; pip's
configuration, itself a secret, names that path.

Compiled wheels that are kept between builds do come from a stage: they change the image, so they
belong in the key. The committed Dockerfile has none of this: ``add_mounts`` adds it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from toolkit.images.host import host_config
from toolkit.images.host.host_config import CERTIFICATES, ROOT, HostConfig
from toolkit.quoting import shell

WHEELS = "wheels"  # a directory of the build context, and its place below ROOT in the build
_SOURCES, _VARIABLES = "sources.list", "variables"
# Every step names all of them, mounted or not, so that a step's key does not depend on them.
_SECRETS = ("apt.conf", CERTIFICATES, "client.pem", "pip.conf", _SOURCES, _VARIABLES)
# BuildKit leaves the empty files in the image that it mounts secrets on, but for the tmpfs.
_MOUNTS = " ".join(
    (
        f"--mount=type=tmpfs,target={ROOT}",
        *(f"--mount=type=secret,id={name},target={ROOT}/{name},mode=0444" for name in _SECRETS),
    )
)
# Each step writes to one stream only, so that commands and their output keep their order.
_FIRST = f"[ ! -f {ROOT}/{_VARIABLES} ] || . {ROOT}/{_VARIABLES}; exec 2>&1; "
_STAGE = "toolkit-wheels"
_TAKE_WHEELS = f" --mount=type=bind,from={_STAGE},target={ROOT}/{WHEELS}"
# With its continuation: lines that end with a backslash, and comments among them.
_RUN = re.compile(
    r"^RUN (?P<flags>(?:--\S+\s+(?:\\\n\s*)?)*)(?P<body>(?:.*\\\n|[ \t]*#.*\n)*.*)", re.MULTILINE
)
_FROM = re.compile(r"^FROM ", re.MULTILINE)


def add_mounts(dockerfile: str) -> str:
    """Return a Dockerfile whose steps see the host configuration.

    Args:
        dockerfile: The text, with one ``RUN`` at the beginning of a line for each step. Its context
            has a directory ``WHEELS``, which only the steps that name it see.
    """
    wheels = f"{ROOT}/{WHEELS}"
    if wheels in dockerfile:
        stage = f"FROM scratch AS {_STAGE}\nCOPY {WHEELS}/ /\n\nFROM "
        dockerfile = _FROM.sub(stage, dockerfile, count=1)

    def add(match: re.Match[str]) -> str:
        takes = _TAKE_WHEELS if wheels in match["body"] else ""
        return f"RUN {_MOUNTS}{takes} {match['flags']}{_FIRST}{match['body']}"

    return _RUN.sub(add, dockerfile)


@contextmanager
def host_files(
    config: HostConfig, directory: Path, word: str, *, mirror: str = "", release: str = ""
) -> Iterator[dict[str, Path]]:
    """Yield the files of the secrets by their ids, and serve directories meanwhile.

    Args:
        config: The host configuration.
        directory: An empty directory that only its owner can enter.
        word: The path at which directories are served; no log may hold it.
        mirror: A mirror of Debian, for a base whose own list of sources is empty.
        release: The code name to use at the mirror.
    """
    files = {bind.target: Path(bind.source) for bind in config.binds}
    directories = {target: path for target, path in files.items() if path.is_dir()}
    if mirror.startswith("file:"):
        directories["debian"] = Path(unquote(urlsplit(mirror).path))
    with _serve(directories, directory / "served", word) as address:
        texts = {
            name: _translate(text, directories, address) for name, text in config.files.items()
        }
        if mirror:
            place = f"{address}/debian" if mirror.startswith("file:") else mirror
            texts[_SOURCES] = f"deb {place} {release} main\n"
            option = f'Dir::Etc::sourcelist "{ROOT}/{_SOURCES}";\n'
            texts["apt.conf"] = texts.get("apt.conf", "") + option
        if proxies := _proxies():
            exports = (f"export {name}={shell(value)}\n" for name, value in proxies.items())
            texts[_VARIABLES] = "".join(exports)
        for name, text in texts.items():
            files[name] = directory / name
            files[name].write_text(text, encoding="utf-8")
        yield {name: path for name, path in files.items() if name in _SECRETS and path.is_file()}


def _proxies() -> dict[str, str]:
    """Return the proxies for the steps, which reach the server below without one."""
    variables = host_config.proxies()
    if variables:
        direct = variables.get("no_proxy") or variables.get("NO_PROXY", "")
        value = ",".join(filter(None, (direct, "127.0.0.1")))
        variables |= dict.fromkeys(("no_proxy", "NO_PROXY"), value)
    return variables


def _translate(text: str, directories: dict[str, Path], address: str) -> str:
    """Replace places below ``ROOT`` by the server's; the longest first, as 10 begins with 1."""
    for target in sorted(directories, key=len, reverse=True):
        for place in (f"file://{ROOT}/{target}", f"{ROOT}/{target}"):
            text = text.replace(place, f"{address}/{target}")
    return text


@contextmanager
def _serve(directories: dict[str, Path], root: Path, word: str) -> Iterator[str]:
    """Serve directories by links to them; yield the address, which is empty if there are none."""
    if not directories:
        yield ""
        return
    for target, path in directories.items():
        link = root / word / target
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    handler = partial(_Handler, f"/{word}/", directory=str(root))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    options = {"poll_interval": 0.05}
    threading.Thread(target=server.serve_forever, kwargs=options, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{word}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    """Serve what is below a path that cannot be guessed; every other path does not exist."""

    def __init__(self, beginning: str, *arguments: Any, **options: Any) -> None:
        self._beginning = beginning
        super().__init__(*arguments, **options)

    def send_head(self) -> Any:
        if self.path.startswith(self._beginning):
            return super().send_head()
        self.send_error(404)
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the path is secret."""
