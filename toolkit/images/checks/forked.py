"""Run checks of Python in forks of one process, which imports their modules once.

Arguments: the modules, then each check as one word for a shell: its name, its script and the script's arguments.
"""

import importlib
import multiprocessing
import os
import runpy
import shlex
import signal
import sys
import tempfile

PATIENCE = 300  # seconds for one check


def run(output: int, *words: str) -> None:
    """Run a script with its arguments, as this process."""
    signal.alarm(PATIENCE)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", 1, closefd=False)  # so that the last line is what was printed last
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")


def check(name: str, *words: str) -> bool:
    """Run a check in a fork and print its result; return whether it passed."""
    with tempfile.TemporaryFile() as output:
        process = multiprocessing.get_context("fork").Process(target=run, args=(output.fileno(), *words))
        process.start()
        process.join()
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    code = process.exitcode or 0
    if code < 0:
        text = f"{text}\n{words[0]} was ended by signal {-code}".strip()
    print(text)
    print(f"toolkit-check: {name} {'failed' if code else 'passed'}: {(text.splitlines() or [''])[-1]}", flush=True)
    return code == 0


if __name__ == "__main__":
    for module in sys.argv[1].split():
        try:
            importlib.import_module(module)
        except BaseException:  # also SystemExit; the check that needs it says so
            continue
    results = [check(*shlex.split(call)) for call in sys.argv[2:]]
    sys.exit(not all(results))
