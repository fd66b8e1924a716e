"""Mount the host configuration into the steps of a build by Docker, without storing any of it.

What was tried with an engine of 20.10:

- A build argument stays in the image's history.
- A copied file stays in its layer, even if a later layer removes it.
- A stage of its own that holds the files, and is mounted, stays in the engine's cache with its
  passwords, and changes the key of a step whenever one of them changes.

So files become *secrets* of the build: mounted for one step only, in memory, in no layer, no
history and no cache key. Secrets are files: directories of packages on this machine are not seen.
The committed Dockerfile has none of this: ``add_mounts`` adds it.
"""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.images.host import host_config
from toolkit.images.host.host_config import CERTIFICATES, ROOT, HostConfig
from toolkit.quoting import shell

_SOURCES, _VARIABLES = "sources.list", "variables"
# Every step names all of them, mounted or not, so that a step's key does not depend on them.
_SECRETS = ("apt.conf", CERTIFICATES, "pip.conf", _SOURCES, _VARIABLES)
# BuildKit leaves the empty files in the image that it mounts secrets on, but for the tmpfs.
_MOUNTS = " ".join(
    (
        f"--mount=type=tmpfs,target={ROOT}",
        *(f"--mount=type=secret,id={name},target={ROOT}/{name},mode=0444" for name in _SECRETS),
    )
)
# Each step writes to one stream only, so that commands and their output keep their order.
_FIRST = f"[ ! -f {ROOT}/{_VARIABLES} ] || . {ROOT}/{_VARIABLES}; exec 2>&1; "
# With its continuation: lines that end with a backslash, and comments among them.
_RUN = re.compile(
    r"^RUN (?P<flags>(?:--\S+\s+(?:\\\n\s*)?)*)(?P<body>(?:.*\\\n|[ \t]*#.*\n)*.*)", re.MULTILINE
)


def add_mounts(dockerfile: str) -> str:
    """Return a Dockerfile whose steps see the host configuration.

    The text has one ``RUN`` at the beginning of a line for each step.
    """
    return _RUN.sub(rf"RUN {_MOUNTS} \g<flags>{_FIRST}\g<body>", dockerfile)


def write_secrets(
    config: HostConfig, directory: Path, *, mirror: str = "", release: str = ""
) -> dict[str, Path]:
    """Write the files of the secrets; return them by their ids.

    Args:
        config: The host configuration.
        directory: An empty directory that only its owner can enter.
        mirror: A mirror of Debian, for a base whose own list of sources is empty.
        release: The code name to use at the mirror.
    """
    files = {bind.target: Path(bind.source) for bind in config.binds}
    texts = dict(config.files)
    if mirror:
        texts[_SOURCES] = f"deb {mirror} {release} main\n"
        option = f'Dir::Etc::sourcelist "{ROOT}/{_SOURCES}";\n'
        texts["apt.conf"] = texts.get("apt.conf", "") + option
    if proxies := host_config.proxies():
        exports = (f"export {name}={shell(value)}\n" for name, value in proxies.items())
        texts[_VARIABLES] = "".join(exports)
    for name, text in texts.items():
        files[name] = directory / name
        files[name].write_text(text, encoding="utf-8")
    return {name: path for name, path in files.items() if name in _SECRETS and path.is_file()}
