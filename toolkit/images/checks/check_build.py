"""Show what horovodrun says that Horovod was built with; NCCL must be among it."""

import contextlib
import io
import runpy
import shutil
import sys

program = shutil.which("horovodrun") or sys.exit("no horovodrun is on PATH")
sys.argv = [program, "--check-build"]
said = io.StringIO()
with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
    runpy.run_path(program, run_name="__main__")
print(said.getvalue().strip())
shown = [line.strip() for line in said.getvalue().splitlines() if "NCCL" in line]
if "[X] NCCL" not in shown:
    sys.exit("horovodrun does not show NCCL")
print(shown[0])
