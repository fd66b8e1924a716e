"""Imports each module that is named, and says its version."""

import importlib
import sys

versions = []
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    version = getattr(module, "__version__", None)
    if version:
        print(f"toolkit-fact: framework {name} {version}")
        versions.append(f"{name} {version}")
print(", ".join(versions))
