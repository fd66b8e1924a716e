# JupyterLab for `toolkit notebook`. Arguments: the seconds after which it stops if nobody uses it (0: never), and the directory that it
# shows.
from __future__ import annotations

import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any

RUN = Path(__file__).resolve().parent
PLACE = Path(os.environ["TOOLKIT_NOTEBOOK"])
SOCKET = PLACE / "jupyter.sock"
TOKEN = Path(os.environ["JUPYTER_TOKEN_FILE"])

try:
    from jupyter_server.auth.identity import PasswordIdentityProvider
    from jupyterlab.labapp import LabApp
    from tornado.ioloop import IOLoop, PeriodicCallback
    from tornado.websocket import WebSocketHandler
except ImportError as error:
    sys.exit(
        f"toolkit: this image cannot serve notebooks: {error}. Add the feature jupyter: toolkit image new NAME --from IMAGE --with jupyter"
    )


class Identity(PasswordIdentityProvider):  # type: ignore[misc]
    """Jupyter's own check of the token, which may change while the server runs."""

    token: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.channels: weakref.WeakSet[Any] = weakref.WeakSet()
        self.watch = PeriodicCallback(self.renew, 1000)
        IOLoop.current().add_callback(self.begin)

    def begin(self) -> None:
        """The server listens: say where."""
        self.watch.start()
        new = RUN / "place.json.new"
        new.write_text(json.dumps({"node": os.environ.get("SLURMD_NODENAME", ""), "socket": str(SOCKET)}))
        new.replace(RUN / "place.json")
        print("notebook: the server listens", flush=True)

    def renew(self) -> None:
        """Take up a new token. Who had the old one is out: cookies are void, and channels to kernels end."""
        try:
            token = TOKEN.read_text().strip()
        except OSError:
            return
        if not token or token == self.token:
            return
        self.token = token
        self.parent.web_app.settings["cookie_secret"] = os.urandom(32)
        for channel in list(self.channels):
            channel.close()
        print("notebook: the token has changed", flush=True)

    def get_user(self, handler: Any) -> Any:
        """Who asks. Channels are noted, since they are asked once, and stay open."""
        if isinstance(handler, WebSocketHandler):
            self.channels.add(handler)
        return super().get_user(handler)


def words(idle: int, directory: str) -> list[str]:
    """The server's options."""
    options = {
        "ServerApp.sock": SOCKET,
        "ServerApp.sock_mode": "0600",
        "ServerApp.root_dir": Path(directory).resolve(),
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "ServerApp.identity_provider_class": "notebook_server.Identity",
        "KernelManager.transport": "ipc",
    }
    if idle:
        options |= {
            "ServerApp.shutdown_no_activity_timeout": idle,
            "TerminalManager.cull_inactive_timeout": idle,
            "TerminalManager.cull_interval": max(1, min(60, idle // 2)),
            "MappingKernelManager.cull_idle_timeout": idle,
            "MappingKernelManager.cull_interval": max(1, min(60, idle // 2)),
            "MappingKernelManager.cull_connected": True,
        }
    return [f"--{name}={value}" for name, value in options.items()]


if __name__ == "__main__":
    sys.path.insert(0, str(RUN))
    sys.dont_write_bytecode = True  # it imports itself, by name
    LabApp.launch_instance(words(int(sys.argv[1]), sys.argv[2]))
