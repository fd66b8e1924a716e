"""The command that starts containers."""

from __future__ import annotations

from toolkit import shell
from toolkit.doctor.case import Answer, Case, failed, passed, warned

_PATIENCE = 20.0  # seconds


def check(case: Case) -> Answer:
    names = case.site.containers if case.site else ("apptainer", "singularity")
    found = next((path for path in map(shell.which, names) if path), None)
    if found is None and case.site and case.site.modules:
        return warned(
            f"{' and '.join(names)} are not on PATH here; in jobs the modules {', '.join(case.site.modules)} bring them"
        )
    if found is None:
        return failed(
            f"neither {' nor '.join(names)} is on PATH", "toolkit setup, or load its module"
        )
    said = shell.run([found, "--version"], check=False, timeout=_PATIENCE)
    if not said.ok:
        return failed(f"{found} does not run: {' '.join(said.tail(1))}", "toolkit setup")
    return passed(f"{said.stdout.strip()} ({found})")
