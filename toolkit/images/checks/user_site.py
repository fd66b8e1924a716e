"""Packages in a user's home must not hide the image's: a module planted there is not found."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as home:
    environment = {**os.environ, "HOME": home, "PYTHONUSERBASE": f"{home}/base"}
    ask = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]
    where = Path(subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout.strip())
    if not where.is_relative_to(home):
        sys.exit(f"the user's site packages are in {where}, where nobody looked for them")
    where.mkdir(parents=True)
    (where / "planted.py").touch()
    found = subprocess.run([sys.executable, "-c", "import planted"], env=environment, capture_output=True)
if found.returncode == 0:
    sys.exit("a module in the user's site packages was imported")
print("a module in the user's site packages is not imported")
