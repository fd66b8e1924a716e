"""`python -m tools.docs build|update|picture|schemas`: the site, its translation, its picture."""

from __future__ import annotations

import sys

from tools.docs import schemas, site, terminal

if __name__ == "__main__":
    commands = {
        "build": site.build,
        "update": site.update,
        "picture": terminal.draw,
        "schemas": schemas.write,
    }
    commands[sys.argv[1]]()
