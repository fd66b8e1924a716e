"""Runs checks of Python in forks of one process, which imports their modules once.

Arguments: the modules, then each check as one word for a shell: its name, its script and the script's arguments.
"""

import importlib
import os
import runpy
import shlex
import signal
import sys
import tempfile
import traceback

PATIENCE = 300  # seconds for one check


def run(program: str, *arguments: str) -> int:
    """Run a program of Python in this process; return its exit code."""
    sys.argv = [program, *arguments]
    code = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run_forked(program: str, *arguments: str) -> "tuple[int, str]":
    """Run a program of Python in a fork of this process; return its exit code and what it printed."""
    sys.stdout.flush()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            signal.alarm(PATIENCE)
            os._exit(run(program, *arguments))
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    if os.WIFSIGNALED(status):
        return 1, f"{text}\n{program} was ended by signal {os.WTERMSIG(status)}".strip()
    return os.WEXITSTATUS(status), text


def main(modules: str, *calls: str) -> int:
    """Run the checks; return 1 if one failed."""
    for module in modules.split():
        try:
            importlib.import_module(module)
        except BaseException:  # also SystemExit; the check that needs it says so
            continue
    failed = False
    for call in calls:
        name, *words = shlex.split(call)
        code, text = run_forked(*words)
        failed = failed or code != 0
        print(text)
        print(f"toolkit-check: {name} {'failed' if code else 'passed'}: {(text.splitlines() or [''])[-1]}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
