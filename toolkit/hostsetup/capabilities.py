"""Root without all of root's capabilities, as in a container or a small virtual machine.

Apptainer gives root in a container every capability there is and dies where root has not got one
(``Requesting capability set ...``). With ``root default capabilities = file`` it gives those that
``capability.json`` lists for root.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from toolkit import shell
from toolkit.errors import ConfigError
from toolkit.files import write_atomically

# In the order of their numbers (linux/capability.h).
_WORDS = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
    SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG
    MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM
    BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
NAMES = tuple(f"CAP_{word}" for word in _WORDS.split())

_PERMITTED = re.compile(r"^CapPrm:\s*([0-9a-f]+)", re.MULTILINE)
_SETTING = re.compile(r"^(root default capabilities\s*=\s*)(\S+)", re.MULTILINE)


def permitted(status: str, last: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the capabilities that a process has and lacks, up to number ``last``.

    Args:
        status: the text of ``/proc/self/status``.
        last: ``/proc/sys/kernel/cap_last_cap``.
    """
    match = _PERMITTED.search(status)
    mask = int(match[1], 16) if match else 0
    known = NAMES[: last + 1]
    return (
        tuple(name for number, name in enumerate(known) if mask >> number & 1),
        tuple(name for number, name in enumerate(known) if not mask >> number & 1),
    )


def own() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the capabilities that this process has and lacks."""
    return permitted(
        Path("/proc/self/status").read_text(),
        int(Path("/proc/sys/kernel/cap_last_cap").read_text()),
    )


def root_default(configuration: str) -> str:
    """Return root's capabilities in a container by ``apptainer.conf``: full, file or no."""
    match = _SETTING.search(configuration)
    return match[2] if match else "full"


def with_root_default_file(configuration: str) -> str:
    """Return ``apptainer.conf`` with root's capabilities read from ``capability.json``."""
    if _SETTING.search(configuration):
        return _SETTING.sub(r"\g<1>file", configuration)
    return configuration.rstrip("\n") + "\nroot default capabilities = file\n"


def with_root_capabilities(listed: str, names: tuple[str, ...]) -> str:
    """Return ``capability.json`` with ``names`` for root; all other entries stay.

    Raises:
        ConfigError: the file is not a JSON object.
    """
    try:
        data = json.loads(listed) if listed.strip() else {}
        users = data.setdefault("users", {})
        users["root"] = list(names)
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            "Apptainer's capability.json is broken",
            next_step="remove or fix the file, then: toolkit setup",
        ) from error
    return json.dumps(data, indent=1) + "\n"


def configuration_file(runtime: str) -> Path:
    """Return ``apptainer.conf`` (or ``singularity.conf``) of this installation."""
    for key in ("APPTAINER_CONF_FILE", "SINGULARITY_CONF_FILE"):
        answer = shell.run([runtime, "buildcfg", key], check=False)
        if answer.ok and answer.stdout.strip():
            return Path(answer.stdout.strip())
    raise ConfigError(
        f"{runtime} does not say where its configuration is",
        place=f"{runtime} buildcfg",
        next_step="toolkit setup --check",
    )


def grant_own_capabilities(runtime: str) -> Path:
    """Give root's containers the capabilities that root has, and back up the configuration."""
    configuration = configuration_file(runtime)
    listed = configuration.with_name("capability.json")
    before = configuration.read_text()
    backup = configuration.with_name(f"{configuration.name}.before-toolkit")
    if not backup.exists():
        write_atomically(backup, before)
    have, _ = own()
    write_atomically(
        listed, with_root_capabilities(listed.read_text() if listed.exists() else "", have)
    )
    write_atomically(configuration, with_root_default_file(before))
    return configuration
