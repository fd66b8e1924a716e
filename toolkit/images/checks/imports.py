"""Import each module that is named, and those of the packages that are named after `--of`, and print their versions."""

import importlib
import re
import sys

# Directories that packages install beside their own module by mistake.
BESIDE = ("test", "tests", "docs", "doc", "examples", "example", "benchmarks", "scripts", "tools", "setup", "conftest")


def modules_of(package: str) -> "tuple[list[str], str]":
    """Return the modules of a package, that of its own name alone if there is one, and its version."""
    try:
        from importlib import metadata
    except ImportError:  # before Python 3.8
        return [], ""
    found = metadata.distribution(package)
    tops = {str(file).split("/")[0] for file in found.files or () if file.suffix in (".py", ".so")}
    known = {top.split(".")[0] for top in tops if "." not in top or top.endswith((".py", ".so"))}
    known |= set((found.read_text("top_level.txt") or "").split())
    names = sorted(name for name in known if name.isidentifier() and not name.startswith("_") and name not in BESIDE)
    same = [name for name in names if re.sub("[-_.]+", "-", name).lower() == re.sub("[-_.]+", "-", package).lower()]
    return same or names, found.version


split = sys.argv.index("--of") if "--of" in sys.argv else len(sys.argv)
wanted = dict.fromkeys(sys.argv[1:split], "")
for package in sys.argv[split + 1 :]:
    modules, number = modules_of(package)
    wanted.update({name: number for name in modules if name not in wanted})
versions = []
wrong = []
for name, number in wanted.items():
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # also SystemExit: a module that ends the program is unusable
        print(f"toolkit-unimportable: {name}")
        wrong.append(f"{name} cannot be imported: {type(error).__name__}: {str(error).strip()[:500]}")
        continue
    version = getattr(module, "__version__", None) or number
    if version:
        print(f"toolkit-fact: framework {name} {version}")
        versions.append(f"{name} {version}")
if wrong:
    sys.exit("; ".join(" ".join(fault.split()) for fault in wrong))
print(", ".join(versions))
