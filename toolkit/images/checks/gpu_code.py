"""List the GPU architectures that the image's frameworks, and what was compiled for it, have machine code for.

Arguments: those that each of them must have: sm_80 sm_90
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

COMPILED = Path("/opt/toolkit/gpu-code")  # a list of each, written where the compiler was


def runs_on(wanted: str, has: "list[str]") -> bool:
    """Return whether there is code for an architecture: its own, or a driver can compile it from intermediate code (compute_90)."""
    older = [name[8:] for name in has if name.startswith("compute_") and name[8:].isdigit()]
    return wanted in has or (wanted[3:].isdigit() and any(int(name) <= int(wanted[3:]) for name in older))


code = {path.stem: path.read_text().split() for path in sorted(COMPILED.glob("*.gpu-code"))}
if find_spec("torch"):
    flags = getattr(import_module("torch")._C, "_cuda_getArchFlags", str)  # not in one for CPUs
    code["torch"] = (flags() or "").split()
if find_spec("tensorflow"):
    build = import_module("tensorflow").sysconfig.get_build_info()
    code["tensorflow"] = [str(name) for name in build.get("cuda_compute_capabilities", ())]
if not sys.argv[1:]:  # what was built for CPUs says nothing of GPUs
    code = {name: has for name, has in code.items() if has}
wrong = []
for name, has in code.items():
    print(f"toolkit-fact: gpu-code {name} {' '.join(has)}")
    if lacks := [wanted for wanted in sys.argv[1:] if not runs_on(wanted, has)]:
        wrong.append(f"{name} has no code for {', '.join(lacks)}")
if wrong:
    sys.exit("; ".join(wrong))
print("; ".join(f"{name}: {', '.join(has)}" for name, has in code.items()))
