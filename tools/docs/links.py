"""Links of pages to files that the site has under other names, or lacks. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

# Files at the top of the repository that are pages of the site, too.
COPIED: Mapping[str, str] = {
    "SECURITY.md": "docs/explanation/security.md",
    "CONTRIBUTING.md": "docs/contributing/index.md",
    "ARCHITECTURE.md": "docs/contributing/architecture.md",
    "CHANGELOG.md": "docs/changelog.md",
    "README.md": "docs/index.md",
}
_LINK = re.compile(r"\[([^\[\]\n]{1,200})\]\(([^()\s]{1,200})\)")


def rewritten(text: str, page: str) -> str:
    """Return a page's text with links that hold in the site.

    A link to a file that the site lacks becomes its text.

    Args:
        text: of the page.
        page: its path in the repository, such as ``docs/running.md``.
    """
    return _LINK.sub(lambda link: _link(link[1], link[2], page), text)


def _link(text: str, target: str, page: str) -> str:
    if re.match(r"https?:|mailto:|#", target):
        return f"[{text}]({target})"
    name, hash_sign, anchor = target.partition("#")
    path = os.path.normpath(PurePosixPath(page).parent / name) if name else page
    path = COPIED.get(path, path)
    if not path.startswith("docs/"):
        return text
    start = PurePosixPath(COPIED.get(page, page)).parent
    return f"[{text}]({os.path.relpath(path, start)}{hash_sign}{anchor})"
