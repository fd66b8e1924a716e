# JupyterLab for `toolkit notebook`. Arguments: the seconds after which it stops if nobody uses it (0: never), and the directory that it
# shows.
from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

RUN = Path(__file__).resolve().parent
PLACE = Path(os.environ["TOOLKIT_NOTEBOOK"])
SOCKET = PLACE / "jupyter.sock"

try:
    from jupyter_core.paths import jupyter_config_dir
    from jupyter_server.auth.identity import PasswordIdentityProvider
    from jupyter_server.base.handlers import APIHandler
    from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
    from jupyterlab.labapp import LabApp
    from jupyterlab_server import handlers
    from jupyterlab_server.workspaces_handler import WorkspacesHandler
    from tornado.ioloop import IOLoop
except ImportError as error:
    sys.exit(
        f"toolkit: this image cannot serve notebooks: {error}. Add the feature jupyter: toolkit image new NAME --from IMAGE --with jupyter"
    )


def tell_place() -> None:
    """Say where the server listens, once it does."""
    new = RUN / "place.json.new"
    try:
        new.write_text(json.dumps({"node": os.environ.get("SLURMD_NODENAME", ""), "socket": str(SOCKET)}))
        new.replace(RUN / "place.json")
    except OSError as error:  # nobody would ever find the server
        sys.exit(f"toolkit: the notebook ends, since its place cannot be written: {error}")
    print("notebook: the server listens", flush=True)


class Identity(PasswordIdentityProvider):  # type: ignore[misc]
    """Jupyter's own check of the token. It is made last before the server listens, and then says where."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        IOLoop.current().add_callback(tell_place)


def words(idle: int, directory: str) -> list[str]:
    """The server's options."""
    root = Path(directory).resolve()
    own = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    options = {
        "ServerApp.sock": SOCKET,
        "ServerApp.sock_mode": "0600",
        "ServerApp.root_dir": root,
        # The home in a container is that of all directories: each has its own open tabs.
        "LabApp.workspaces_dir": Path(jupyter_config_dir(), "lab", "workspaces", own),
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        # Who had a token that leaked could set a password with it, which would outlive this server.
        "PasswordIdentityProvider.allow_password_change": False,
        "PasswordIdentityProvider.hashed_password": "",
        "ServerApp.identity_provider_class": "notebook_server.Identity",
        "KernelManager.transport": "ipc",
    }
    if idle:
        times = {
            "ServerApp.shutdown_no_activity_timeout": idle,
            "TerminalManager.cull_inactive_timeout": idle,
            "TerminalManager.cull_interval": max(1, min(60, idle // 2)),
            "MappingKernelManager.cull_idle_timeout": idle,
            "MappingKernelManager.cull_interval": max(1, min(60, idle // 2)),
            "MappingKernelManager.cull_connected": True,
        }
        options.update(times)  # |= is of Python 3.9, and images have older ones
    return [f"--{name}={value}" for name, value in options.items()]


def conceal() -> None:
    """Keep the token out of core dumps, and this process's memory from the user's other processes."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def ignore_queries() -> None:
    """Count requests as use only if they change something: a browser that nobody looks at asks for kernels all the time.

    It also stores its layout every 10 seconds, which is not counted either.
    """
    count = APIHandler.update_api_activity

    def update(handler: Any) -> None:
        if handler.request.method not in ("GET", "HEAD"):
            count(handler)

    APIHandler.update_api_activity = update
    WorkspacesHandler._track_activity = False


class AllButDebugger:
    """The types of messages that kernels get."""

    def __contains__(self, kind: str) -> bool:
        return kind != "debug_request"


def without_debugger() -> None:
    """Keep ipykernel's debugger off, and its button hidden: debugpy listens on ports on which other users of the node can run code as this one."""
    MappingKernelManager.allowed_message_types = AllButDebugger()
    get = handlers.get_page_config

    def page_config(*arguments: Any, **options: Any) -> Any:
        config = get(*arguments, **options)
        config["disabledExtensions"] = [*config.get("disabledExtensions", ()), "@jupyterlab/debugger-extension"]
        return config

    handlers.get_page_config = page_config


if __name__ == "__main__":
    conceal()
    ignore_queries()
    without_debugger()
    sys.path.insert(0, str(RUN))
    sys.dont_write_bytecode = True  # it imports itself, by name
    LabApp.launch_instance(words(int(sys.argv[1]), sys.argv[2]))
