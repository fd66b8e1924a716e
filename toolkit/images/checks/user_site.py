"""Packages in a user's home must not hide the image's: a module planted there is not found.

With `--foreign`, as for images of others, it is enough that it is not found where PYTHONNOUSERSITE is set, as in every job.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as home:
    environment = {**os.environ, "HOME": home, "PYTHONUSERBASE": f"{home}/base"}
    ask = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]
    where = Path(subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout.strip())
    if not str(where).startswith(home):
        sys.exit(f"the user's site packages are in {where}, where nobody looked for them")
    where.mkdir(parents=True)
    (where / "planted.py").touch()
    settings = [{}, {"PYTHONNOUSERSITE": "1"}] if "--foreign" in sys.argv else [{}]
    found = [
        subprocess.run([sys.executable, "-c", "import planted"], env={**environment, **more}, capture_output=True).returncode == 0
        for more in settings
    ]
if found[-1]:
    sys.exit("a module in the user's site packages was imported")
if found[0]:
    print("off in jobs, which set PYTHONNOUSERSITE; the image by itself leaves them on")
else:
    print("a module in the user's site packages is not imported")
