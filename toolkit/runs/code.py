"""Record the code of a run: the script's hash, the commit, its changes and untracked names."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from toolkit import git
from toolkit.errors import ConfigError
from toolkit.files import write_atomically
from toolkit.model.base import to_json
from toolkit.model.code import Code, ScriptFile
from toolkit.runs.store import Paths
from toolkit.text import HIDDEN, redacted

_MOST_DIFF = 1 << 20  # characters of a diff that are kept
_MOST_UNTRACKED = 1000  # names that are kept
# Names of files that usually hold secrets: their content is never copied.
SECRET_FILES = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", ".pypirc", ".npmrc", ".pgpass", ".htpasswd"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*.gpg", "*.ppk"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("credentials", "*token.txt", "kaggle.json"),
    *(
        f"{name}.{ending}"
        for name in ("credentials", "secret", "secrets")
        for ending in ("json", "toml", "yaml", "yml", "ini", "txt")
    ),
)


def record(paths: Paths, script: ScriptFile | None, folder: Path, secrets: Iterable[str]) -> None:
    """Record the code of a run. No run fails for it.

    Args:
        paths: of the run.
        script: that is run.
        folder: the directory that it lies in.
        secrets: values that must not be in the diff.
    """
    code, diff = _of_tree(script, folder, paths.directory.parent.resolve())
    with suppress(OSError, ValueError):
        if diff:
            write_atomically(paths.diff, _without(diff, secrets), mode=0o600)
        write_atomically(paths.code, to_json(code))


def _of_tree(script: ScriptFile | None, folder: Path, runs: Path) -> tuple[Code, str]:
    tree = git.top(folder)
    if tree is None:
        return Code(script=script), ""
    state = git.state(tree)
    if state is None:
        return Code(
            script=script, tree=str(tree), note="git does not tell the state of the tree"
        ), ""
    diff = git.diff(tree, SECRET_FILES, _MOST_DIFF) if state.is_changed and state.commit else ""
    untracked = tuple(name for name in state.untracked if tree / name != runs)
    more = len(untracked) - _MOST_UNTRACKED
    notes = [
        *(["git does not tell what differs from the commit"] if diff is None else []),
        *([f"{more} more untracked names are not kept"] if more > 0 else []),
    ]
    code = Code(
        script=script,
        tree=str(tree),
        commit=state.commit,
        branch=state.branch,
        is_changed=state.is_changed,
        is_cut=len(diff or "") >= _MOST_DIFF,
        untracked=untracked[:_MOST_UNTRACKED],
        note="; ".join(notes),
    )
    return code, diff or ""


def _without(diff: str, secrets: Iterable[str]) -> str:
    for value in secrets:
        if len(value) >= 4:  # a shorter one would be found in every line
            diff = diff.replace(value, HIDDEN)
    return redacted(diff)


def repeat(before: Path, paths: Paths) -> None:
    """Give a run the record of an earlier one whose code it runs again."""
    for name in ("code.json", "code.diff"):
        with suppress(OSError):
            shutil.copy(before / name, paths.directory / name)


def change_since(run: Path, script: ScriptFile | None) -> str:
    """Return a warning if a script is not the one that an earlier run had; else nothing."""
    try:
        code = Paths(run).read(Paths(run).code, Code) or Code()
    except ConfigError:
        return ""
    if script is None or code.script is None or code.script.sha256 == script.sha256:
        return ""
    name = Path(script.path).name
    return f"{name} has changed since {run.name}; it runs as it is now (--snapshot keeps a copy)"
