"""Compare the metadata of Horovod's build with what its modules can do, and with the frameworks of the image.

One witness alone is not enough: `horovodrun --check-build` was seen to show PyTorch for a build that had been made for TensorFlow only.
Arguments: frameworks and operations that it must be built with, a comma between them: pytorch , mpi gloo
"""

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}


def read_metadata() -> Any:
    """Return the metadata of Horovod's build; None if there are none."""
    spec = find_spec("horovod")
    try:
        return json.loads((Path(spec.origin).parent / "metadata.json").read_text()) if spec and spec.origin else None
    except (OSError, ValueError):
        return None


def import_error(module: str) -> str:
    """Return why a module cannot be imported; empty if it can."""
    try:
        import_module(module)
    except BaseException as error:  # also SystemExit
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
    return ""


def judge(name: str, reason: str, metadata: Any, version: str, required: bool) -> str:
    """Return what is wrong with the build for a framework of the image; `reason` is why Horovod's module for it cannot be imported."""
    recorded, built_for = name in (metadata or {}), (metadata or {}).get(name)
    if reason and (recorded or required):
        return f"horovod.{MODULES[name]} cannot be imported ({reason})"
    if not reason and metadata is not None and not recorded:
        return f"horovod.{MODULES[name]} can be imported, but the metadata of its build does not have {name}"
    if not reason and built_for and version and built_for != version:
        return f"Horovod was built for {name} {built_for}, and {version} is in the image"
    return ""


def main(required: "list[str]", operations: "list[str]") -> None:
    """Print what Horovod is built for, or exit with what is wrong."""
    metadata, wrong, built = read_metadata(), [], {}
    for name, module in MODULES.items():
        if find_spec(module):
            reason = import_error(f"horovod.{module}")
            version = str(getattr(sys.modules.get(module), "__version__", ""))
            wrong.append(judge(name, reason, metadata, version, name in required))
            if not reason:
                built[name] = f"{name} {(metadata or {}).get(name, '')}".strip()
        elif name in required:
            wrong.append(f"it should work with {name}, which is not in the image")
    if not built:
        sys.exit("; ".join(filter(None, wrong)) or "it is built for no framework that is in the image")
    library = sys.modules[f"horovod.{MODULES[next(iter(built))]}"]
    has = [name for name in ("mpi", "gloo", "nccl") if getattr(library, f"{name}_built")()]
    wrong += [f"it is built without {name}" for name in operations if name not in has]
    controllers = [name for name in has if name != "nccl"]
    for name in controllers:
        print(f"toolkit-fact: controller {name}")
    wrong += [] if controllers else ["it has neither MPI nor Gloo"]
    if any(wrong):
        sys.exit("; ".join(filter(None, wrong)))
    note = " (this release keeps no metadata of its build)" if metadata is None else ""
    print(f"built for {', '.join(built.values())}{note}, with {', '.join(has)}")


if __name__ == "__main__":
    main(*(part.split() for part in " ".join(sys.argv[1:]).split(",")))
