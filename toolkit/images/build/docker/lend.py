"""How a build by Docker sees what the machine lends (``loan``) without keeping any of it.

The ways that there are with an engine of 20.10 were tried. A build argument stays in the image's
history. A file that is copied in stays in its layer, also when a later layer removes it. A stage of
its own that holds the files, and is mounted, stays in the engine's cache with its passwords, and
gives a step another key whenever one of them changes. So files come as BuildKit's *secrets*:
mounted for one step only, in memory, in no layer, no history and no key of the cache. Secrets are
small files, so directories of packages on this machine are served to the build on a loopback
address with a path that cannot be guessed, for as long as it takes, and pip's configuration, itself
a secret, says where. Below all of it is an empty file system in memory, so that not even the empty
files stay that BuildKit would mount secrets on.

Compiled wheels that are kept between builds do come from a stage: they decide what the image
becomes, so they belong into the key.

The committed Dockerfile has none of this. What is changed in it is here: ``lent``.
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

from toolkit.images.build.host_mounts import CERTIFICATES, ROOT, HostConfig
from toolkit.images.lockfile.apply import PREFERENCES, QUESTION
from toolkit.quoting import shell

WHEELS = "wheels"  # within the directory that is given to the engine, and below ROOT in the build
SOURCES = "sources.list"
# Named in every step whether they are lent or not, so that a step's key does not depend on it.
SECRETS = ("apt.conf", CERTIFICATES, "client.pem", "pip.conf", PREFERENCES, QUESTION, SOURCES)
VARIABLES = "variables"  # a secret of clients that have no other way for them; a shell reads it
_STAGE = "toolkit-wheels"
_LENT_WHEELS = f"{ROOT}/{WHEELS}"
# With the lines that it goes on in: those that end with a backslash, and comments among them.
_RUN = re.compile(
    r"^RUN (?P<flags>(?:--\S+\s+(?:\\\n\s*)?)*)(?P<body>(?:.*\\\n|[ \t]*#.*\n)*.*)", re.MULTILINE
)
_FROM = re.compile(r"^FROM ", re.MULTILINE)


@dataclass(frozen=True)
class MountForm:
    """How steps are given what is lent.

    Attributes:
        mounts: of each step.
        first: the first words of its shell.
    """

    mounts: tuple[str, ...]
    first: str = "exec 2>&1"


def secret_mount(name: str) -> str:
    """The mount of a secret."""
    return f"type=secret,id={name},target={ROOT}/{name},mode=0444"


BUILDKIT = MountForm((f"type=tmpfs,target={ROOT}", *map(secret_mount, SECRETS)))


def add_mounts(dockerfile: str, form: MountForm = BUILDKIT) -> str:
    """A Dockerfile whose steps see what is lent, and say everything on one stream, so that commands and what they print keep their order.

    Args:
        dockerfile: with one ``RUN`` at the beginning of a line for each step. The context that it is built with has a directory ``WHEELS``,
            which steps see that name it, and only these.
        form: of who builds it.
    """
    flags = " ".join(f"--mount={mount}" for mount in form.mounts)
    wheels = f" --mount=type=bind,from={_STAGE},target={_LENT_WHEELS}"
    if _LENT_WHEELS in dockerfile:
        dockerfile = _FROM.sub(
            f"FROM scratch AS {_STAGE}\nCOPY {WHEELS}/ /\n\nFROM ", dockerfile, count=1
        )

    def changed(found: re.Match[str]) -> str:
        own, body = found["flags"], found["body"]
        return f"RUN {flags}{wheels if _LENT_WHEELS in body else ''} {own}{form.first}; {body}"

    return _RUN.sub(changed, dockerfile)


@dataclass(frozen=True)
class MountedSecrets:
    """What is lent to one build.

    Attributes:
        files: of the secrets, by their names.
        hidden: what no log may hold: the path at which directories are served.
    """

    files: dict[str, Path]
    hidden: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """For the client; they name files, and hold nothing that is in them."""
        return [
            word
            for name, path in sorted(self.files.items())
            for word in ("--secret", f"id={name},src={path}")
        ]


@contextmanager
def mount_host_config(
    loan: HostConfig,
    directory: Path,
    *,
    mirror: str = "",
    release: str = "",
    variables: Mapping[str, str] | None = None,
) -> Iterator[MountedSecrets]:
    """Put what the host lends where the engine's client takes it from, and serve its directories meanwhile.

    Args:
        loan: what the host lends.
        directory: an empty one that only its owner can enter, for the files.
        mirror: of Debian, for a base whose own list of sources names none.
        release: the code name that is asked of the mirror.
        variables: that steps get as a file.
    """
    directories = {
        bind.target: Path(bind.source) for bind in loan.binds if Path(bind.source).is_dir()
    }
    files = {bind.target: Path(bind.source) for bind in loan.binds if Path(bind.source).is_file()}
    if mirror.startswith("file:"):
        directories["debian"] = Path(urllib.parse.unquote(urllib.parse.urlsplit(mirror).path))
    with _served(directories) as address:
        texts = {
            name: _served_text(text, directories, address) for name, text in loan.files.items()
        }
        if mirror:
            place = f"{address}/debian" if mirror.startswith("file:") else mirror
            texts[SOURCES] = f"deb {place} {release} main\n"
            texts["apt.conf"] = (
                texts.get("apt.conf", "") + f'Dir::Etc::sourcelist "{ROOT}/{SOURCES}";\n'
            )
        if variables:
            texts[VARIABLES] = "".join(
                f"export {name}={shell(value)}\n" for name, value in variables.items()
            )
        for name, text in texts.items():
            files[name] = directory / name
            files[name].write_text(text, encoding="utf-8")
        known = {name: path for name, path in files.items() if name in (*SECRETS, VARIABLES)}
        yield MountedSecrets(known, (address.rpartition("/")[2],) if address else ())


def _served_text(text: str, directories: dict[str, Path], address: str) -> str:
    """pip's configuration, in which places below ``ROOT`` become places of the server; the longest first, since 1 begins 10."""
    for target in sorted(directories, key=len, reverse=True):
        for place in (f"file://{ROOT}/{target}", f"{ROOT}/{target}"):
            text = text.replace(place, f"{address}/{target}")
    return text


@contextmanager
def _served(directories: dict[str, Path]) -> Iterator[str]:
    """The address below which each directory is at its name; none where there is nothing to serve."""
    if not directories:
        yield ""
        return
    word = secrets.token_urlsafe(18)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0),
        partial(_Handler, {f"/{word}/{target}": path for target, path in directories.items()}),
    )
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{word}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    """Files of several directories, by the beginning of the path; to whoever does not know it, nothing is there."""

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
        """Says nothing: the path is not for other eyes."""
