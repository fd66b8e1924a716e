"""Check that packages in a user's home do not hide the image's: a module planted there is not found.

With `--foreign`, as for images of others, it is enough that it is not found where PYTHONNOUSERSITE is set, as in every job.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as home:
    packages = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": home}))
    packages.mkdir(parents=True)
    (packages / "planted.py").touch()
    plain = {**os.environ, "HOME": home, "PYTHONUSERBASE": home}
    in_jobs = {**plain, "PYTHONNOUSERSITE": "1"}
    found, found_in_jobs = [
        subprocess.run([sys.executable, "-c", "import planted"], env=variables, capture_output=True).returncode == 0
        for variables in (plain, in_jobs)
    ]
if found_in_jobs or (found and "--foreign" not in sys.argv):
    sys.exit("a module in the user's site packages was imported")
print("off in jobs, which set PYTHONNOUSERSITE; the image by itself leaves them on" if found else "a module in the user's site packages is not imported")
