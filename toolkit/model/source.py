"""What can be seen in a training script without running it."""

from __future__ import annotations

from toolkit.model.base import Model


class Option(Model, frozen=True, kw_only=True):
    """An option that the script's argparse defines.

    Attributes:
        flag: as it is typed: ``--dist-url``.
        takes_value: it is followed by one; else it is a switch.
    """

    flag: str
    takes_value: bool = True


class Source(Model, frozen=True, kw_only=True):
    """A script and the modules beside it that it imports.

    Attributes:
        python: it could be read as Python.
        imports: modules, and what was imported from them: ``torch.distributed``, ``torch.nn.parallel.DistributedDataParallel``.
        calls: every function or class that is called: ``torch.multiprocessing.spawn``, also where the script says ``mp.spawn``.
        options: what its argparse defines.
    """

    python: bool = False
    imports: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()

    def imports_any(self, *modules: str) -> bool:
        """Whether one of the modules, or a part of one, is imported."""
        return any(
            name == module or name.startswith(module + ".")
            for name in self.imports
            for module in modules
        )

    def calls_any(self, *names: str) -> bool:
        """Whether something of one of these names is called: ``DataParallel``, or more exactly ``multiprocessing.spawn``."""
        return any(
            call == name or call.endswith("." + name) for call in self.calls for name in names
        )

    def option(self, *names: str) -> Option | None:
        """The option of one of these names, which may be written with ``-`` or ``_``."""
        return next(
            (found for found in self.options if found.flag.lstrip("-").replace("_", "-") in names),
            None,
        )
