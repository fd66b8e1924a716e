"""Compare what Horovod's modules can do with the metadata of its build, and with the frameworks of the image.

One witness alone is not enough: `horovodrun --check-build` was seen to show PyTorch for a build that had been made for TensorFlow only.
Arguments: frameworks and operations that it must be built with, a comma between them: pytorch , mpi gloo
"""

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

MODULES = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}

required, operations = (part.split() for part in " ".join(sys.argv[1:]).split(","))
try:
    metadata = json.loads(Path(str(getattr(find_spec("horovod"), "origin", ""))).with_name("metadata.json").read_text())
except (OSError, ValueError):
    metadata = None  # as of older releases
wrong, built, library = [], [], None
for name, module in MODULES.items():
    recorded = name in (metadata or ())
    try:
        imported = import_module(f"horovod.{module}")
        if not hasattr(imported, "mpi_built"):  # horovod.torch of 0.28.1 warns of this, and goes on
            raise ImportError("its library was not built")
    except BaseException as error:  # also SystemExit
        if name in required or (recorded and find_spec(module)):
            reason = (str(error).strip().splitlines() or [""])[-1]
            wrong.append(f"horovod.{module} cannot be imported ({type(error).__name__}: {reason})")
        continue
    library = library or imported
    version, built_for = str(getattr(sys.modules.get(module), "__version__", "")), (metadata or {}).get(name)
    built.append(f"{name} {built_for or ''}".strip())
    if metadata is not None and not recorded:
        wrong.append(f"horovod.{module} can be imported, but the metadata of its build does not have {name}")
    elif built_for and version and built_for != version:
        wrong.append(f"Horovod was built for {name} {built_for}, and {version} is in the image")
controllers = [name for name in ("mpi", "gloo") if library and getattr(library, f"{name}_built")()]
has = [*controllers, *(["nccl"] if library and library.nccl_built() else [])]
wrong += [f"it is built without {name}" for name in operations if name not in has]
if not controllers:
    wrong.append("it has neither MPI nor Gloo" if library else "it is built for no framework that is in the image")
for name in controllers:
    print(f"toolkit-fact: controller {name}")
if wrong:
    sys.exit("; ".join(wrong))
note = " (this release keeps no metadata of its build)" if metadata is None else ""
print(f"built for {', '.join(built)}{note}, with {', '.join(has)}")
