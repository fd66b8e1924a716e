"""Mount the host configuration into the steps of a build by Docker, without storing any of it.

What was tried with an engine of 20.10:

- A build argument stays in the image's history.
- A copied file stays in its layer, even if a later layer removes it.
- A stage of its own that holds the files, and is mounted, stays in the engine's cache with its
  passwords, and changes the key of a step whenever one of them changes.

So files become BuildKit's *secrets*: mounted for one step only, in memory, in no layer, no history
and no cache key. Secrets are small files. So directories of packages on this machine are served on
a loopback address during the build, at a path that cannot be guessed; pip's configuration, itself a
secret, names that path. Below all of them is a tmpfs, so that not even the empty files stay that
BuildKit mounts secrets on.

Compiled wheels that are kept between builds do come from a stage: they change the image, so they
belong in the key.

The committed Dockerfile has none of this: ``add_mounts`` adds it.
"""

from __future__ import annotations

import re
import secrets
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from toolkit.images.host.host_mounts import CERTIFICATES, ROOT, HostConfig
from toolkit.images.lockfile.apply import PREFERENCES, QUESTION
from toolkit.quoting import shell

WHEELS = "wheels"  # a directory of the build context, and its place below ROOT in the build
SOURCES = "sources.list"
# Every step names all of them, mounted or not, so that a step's key does not depend on them.
SECRETS = ("apt.conf", CERTIFICATES, "client.pem", "pip.conf", PREFERENCES, QUESTION, SOURCES)
VARIABLES = "variables"  # a shell file, for clients that would store variables
_STAGE = "toolkit-wheels"
_MOUNTED_WHEELS = f"{ROOT}/{WHEELS}"
# With its continuation: lines that end with a backslash, and comments among them.
_RUN = re.compile(
    r"^RUN (?P<flags>(?:--\S+\s+(?:\\\n\s*)?)*)(?P<body>(?:.*\\\n|[ \t]*#.*\n)*.*)", re.MULTILINE
)
_FROM = re.compile(r"^FROM ", re.MULTILINE)


@dataclass(frozen=True)
class MountForm:
    """The mounts and first words by which steps see the host configuration.

    Attributes:
        mounts: The mounts of each step.
        first: The first words of each step's shell.
    """

    mounts: tuple[str, ...]
    first: str = "exec 2>&1"


def secret_mount(name: str) -> str:
    """Return the mount of a secret."""
    return f"type=secret,id={name},target={ROOT}/{name},mode=0444"


BUILDKIT = MountForm((f"type=tmpfs,target={ROOT}", *map(secret_mount, SECRETS)))


def add_mounts(dockerfile: str, form: MountForm = BUILDKIT) -> str:
    """Return a Dockerfile whose steps see the host configuration.

    Each step writes to one stream only, so that commands and their output keep their order.

    Args:
        dockerfile: The text, with one ``RUN`` at the beginning of a line for each step. Its context
            has a directory ``WHEELS``, which only the steps that name it see.
        form: The engine's way to mount.
    """
    flags = " ".join(f"--mount={mount}" for mount in form.mounts)
    wheels = f" --mount=type=bind,from={_STAGE},target={_MOUNTED_WHEELS}"
    if _MOUNTED_WHEELS in dockerfile:
        stage = f"FROM scratch AS {_STAGE}\nCOPY {WHEELS}/ /\n\nFROM "
        dockerfile = _FROM.sub(stage, dockerfile, count=1)

    def add(match: re.Match[str]) -> str:
        own, body = match["flags"], match["body"]
        return f"RUN {flags}{wheels if _MOUNTED_WHEELS in body else ''} {own}{form.first}; {body}"

    return _RUN.sub(add, dockerfile)


@dataclass(frozen=True)
class MountedSecrets:
    """The host configuration of one build.

    Attributes:
        files: The files of the secrets, by name.
        masked: Texts that no log may hold: the path at which directories are served.
    """

    files: dict[str, Path]
    masked: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """Return the client's arguments; they name files and hold nothing that is in them."""
        return [
            word
            for name, path in sorted(self.files.items())
            for word in ("--secret", f"id={name},src={path}")
        ]


@contextmanager
def mount_host_config(
    config: HostConfig,
    directory: Path,
    *,
    mirror: str = "",
    release: str = "",
    variables: Mapping[str, str] | None = None,
) -> Iterator[MountedSecrets]:
    """Write the host configuration for the engine's client, and serve its directories meanwhile.

    Args:
        config: The host configuration.
        directory: An empty directory that only its owner can enter.
        mirror: A mirror of Debian, for a base whose own list of sources is empty.
        release: The code name to use at the mirror.
        variables: Variables that steps read from a file.
    """
    sources = {bind.target: Path(bind.source) for bind in config.binds}
    directories = {target: path for target, path in sources.items() if path.is_dir()}
    files = {target: path for target, path in sources.items() if path.is_file()}
    if mirror.startswith("file:"):
        directories["debian"] = Path(urllib.parse.unquote(urllib.parse.urlsplit(mirror).path))
    with _serve(directories) as address:
        texts = {
            name: _point_at_server(text, directories, address)
            for name, text in config.files.items()
        }
        if mirror:
            place = f"{address}/debian" if mirror.startswith("file:") else mirror
            texts[SOURCES] = f"deb {place} {release} main\n"
            option = f'Dir::Etc::sourcelist "{ROOT}/{SOURCES}";\n'
            texts["apt.conf"] = texts.get("apt.conf", "") + option
        if variables:
            lines = (f"export {name}={shell(value)}\n" for name, value in variables.items())
            texts[VARIABLES] = "".join(lines)
        for name, text in texts.items():
            files[name] = directory / name
            files[name].write_text(text, encoding="utf-8")
        known = {name: path for name, path in files.items() if name in (*SECRETS, VARIABLES)}
        yield MountedSecrets(known, (address.rpartition("/")[2],) if address else ())


def _point_at_server(text: str, directories: dict[str, Path], address: str) -> str:
    """Replace places below ``ROOT`` by the server's; the longest first, as 10 begins with 1."""
    for target in sorted(directories, key=len, reverse=True):
        for place in (f"file://{ROOT}/{target}", f"{ROOT}/{target}"):
            text = text.replace(place, f"{address}/{target}")
    return text


@contextmanager
def _serve(directories: dict[str, Path]) -> Iterator[str]:
    """Serve directories by name; yield the address, which is empty if there are none."""
    if not directories:
        yield ""
        return
    word = secrets.token_urlsafe(18)
    places = {f"/{word}/{target}": path for target, path in directories.items()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, places))
    server.daemon_threads = True
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{word}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    """Serve files of several directories, each below a path; every other path does not exist."""

    def __init__(self, places: dict[str, Path], *arguments: object) -> None:
        self._places = places
        super().__init__(*arguments)  # type: ignore[arg-type]

    def translate_path(self, path: str) -> str:
        plain = path.split("?")[0].split("#")[0]
        for beginning, directory in self._places.items():
            if plain == beginning or plain.startswith(f"{beginning}/"):
                self.directory = str(directory)
                return super().translate_path(plain[len(beginning) :] or "/")
        return "/-"

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the path is secret."""
