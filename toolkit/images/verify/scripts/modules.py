"""Import the given modules; print the version of each, or its error, as one line of JSON."""

import importlib
import json
import sys

versions = {}
errors = {}
for name in sys.argv[1:]:
    try:
        versions[name] = str(getattr(importlib.import_module(name), "__version__", ""))
    except BaseException as error:  # also SystemExit: a module that ends the program is unusable
        errors[name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
print("toolkit-json: " + json.dumps({"versions": versions, "errors": errors}))
