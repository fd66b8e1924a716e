"""Imports every module that is named; one line of JSON: the version of each, or why it cannot be imported."""

import importlib
import json
import sys

versions = {}
errors = {}
for name in sys.argv[1:]:
    try:
        versions[name] = str(getattr(importlib.import_module(name), "__version__", ""))
    except (
        BaseException
    ) as error:  # also SystemExit: a module that ends the program is one that cannot be imported
        errors[name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
print("toolkit-json: " + json.dumps({"versions": versions, "errors": errors}))
