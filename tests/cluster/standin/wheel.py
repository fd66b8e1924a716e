"""Stands in for `pip wheel .` in the source of Horovod: a wheel that has what the environment asks for, by name.

Arguments: wheel ... -w DIRECTORY .
"""

import json
import os
import sys
import zipfile
from importlib import import_module
from pathlib import Path

MODULES = {"pytorch": "torch", "tensorflow": "tensorflow"}
HOROVODRUN = """#!/bin/sh
# A stand-in for horovodrun.
while [ "$1" != python3 ]; do shift; done
STAND_IN_CONTROLLER=gloo exec "$@"
"""
# Where the ranks of Gloo meet: nobody comes, since one process answers as both.
MEETING = {
    "horovod/runner/common/util/hosts.py": """
def parse_hosts(text):
    return [text]


def get_host_assignments(hosts, ranks):
    return [hosts] * ranks
""",
    "horovod/runner/http/http_server.py": """
import time


class RendezvousHandler:
    pass


class RendezvousHTTPServer:
    def __init__(self, address, handler, verbose):
        self.server_address = address

    def init(self, assignments):
        pass

    def serve_forever(self):
        time.sleep(600)
""",
}


def files(frameworks: dict[str, str]) -> dict[str, str]:
    """What the wheel holds, built against frameworks in some versions."""
    info, form = (
        "horovod-0.28.1.dist-info",
        "Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: true\n",
    )
    modules = {
        f"horovod/{MODULES[name]}/__init__.py": "from standin import *\n" for name in frameworks
    }
    return {
        "horovod/__init__.py": '"""A stand-in for Horovod."""\n__version__ = "0.28.1+standin"\n',
        **modules,
        **MEETING,
        "horovod/metadata.json": json.dumps(frameworks),
        "horovod-0.28.1.data/scripts/horovodrun": HOROVODRUN,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
        f"{info}/WHEEL": f"{form}Tag: py3-none-any\n",
    }


def main(arguments: list[str]) -> None:
    target = Path(arguments[arguments.index("-w") + 1])
    if "horovod" not in Path("setup.py").read_text() or not Path("horovod/__init__.py").is_file():
        sys.exit("this stand-in compiles the source of Horovod only")
    asked = [name for name in MODULES if os.environ.get(f"HOROVOD_WITH_{name.upper()}") == "1"]
    held = files({name: import_module(MODULES[name]).__version__ for name in asked})
    record = "horovod-0.28.1.dist-info/RECORD"
    held[record] = "".join(f"{name},,\n" for name in [*held, record])
    with zipfile.ZipFile(target / "horovod-0.28.1-py3-none-any.whl", "w") as wheel:
        for name, text in held.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            wheel.writestr(entry, text)


if __name__ == "__main__":
    main(sys.argv[1:])
