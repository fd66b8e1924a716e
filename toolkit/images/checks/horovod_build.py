"""Horovod has what is named: `horovodrun --check-build` says so, and so does the metadata of the build, since the first can be wrong.
The frameworks are in the versions that it was built against.

Arguments: frameworks as Horovod's metadata calls them, then a comma, then operations: pytorch , mpi gloo
"""

import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

MODULES = {"pytorch": "torch"}

arguments = sys.argv[1:]
frameworks = arguments[: arguments.index(",")]
operations = arguments[arguments.index(",") + 1 :]

said = subprocess.run(["horovodrun", "--check-build"], capture_output=True, text=True, check=True).stdout
print(said)
marked = {name.lower() for name in re.findall(r"\[X\] (\S+)", said)}
missing = [name for name in (*frameworks, *operations) if name not in marked]
if missing:
    sys.exit(f"horovodrun --check-build does not have {', '.join(missing)}")

package = find_spec("horovod")
metadata = json.loads((Path(package.origin).parent / "metadata.json").read_text()) if package and package.origin else {}
missing = [name for name in frameworks if name not in metadata]
if missing:
    sys.exit(f"Horovod's metadata does not have {', '.join(missing)}")
there = {name: str(getattr(import_module(MODULES.get(name, name)), "__version__", "")) for name in frameworks}
wrong = [f"{name} {metadata[name]}, and {there[name]} is in the image" for name in frameworks if there[name] != metadata[name]]
if wrong:
    sys.exit(f"Horovod was built for {'; for '.join(wrong)}")
print(f"built for {', '.join(f'{name} {metadata[name]}' for name in frameworks)}, with {', '.join(operations)}")
