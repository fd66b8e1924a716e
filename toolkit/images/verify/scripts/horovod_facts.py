"""Print Horovod's build as one line of JSON.

It is known from three places: `horovodrun --check-build`, the metadata of the build, and Horovod's
modules.
"""

import importlib
import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FRAMEWORKS = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}


def metadata() -> Any:
    """Return the metadata of Horovod's build; None if there is none."""
    spec = find_spec("horovod")
    try:
        return (
            json.loads((Path(spec.origin).parent / "metadata.json").read_text())
            if spec and spec.origin
            else None
        )
    except (OSError, ValueError):
        return None


def reason(name: str) -> str:
    """Return why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(name)
    except BaseException as error:
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
    return ""


try:
    done = subprocess.Popen(
        ["horovodrun", "--check-build"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = done.communicate()[0].decode(errors="replace")
    code = done.returncode
except OSError as error:
    output, code = str(error), 127
installed = {framework: module for framework, module in FRAMEWORKS.items() if find_spec(module)}
print(
    "toolkit-json: "
    + json.dumps(
        {
            "output": output,
            "code": code,
            "metadata": metadata(),
            "modules": {
                framework: reason("horovod." + module) for framework, module in installed.items()
            },
        }
    )
)
