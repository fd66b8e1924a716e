"""Read what one file of Python shows, in one pass over its syntax tree. Nothing of it is run."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from toolkit.model.case import Construction


class ImportStatement(NamedTuple):
    """An import statement, or one name of ``import a, b``.

    Attributes:
        is_certain: it runs whenever the file is imported, and its failure ends the program: it is
            in no function, ``try``, condition or loop.
        line: of the statement.
        module: that it names, with dots; empty in ``from . import x``.
        names: what is taken from it; empty for ``import module``.
        level: dots before the name.
    """

    is_certain: bool
    line: int
    module: str
    names: tuple[str, ...] = ()
    level: int = 0

    @property
    def members(self) -> tuple[str, ...]:
        """The full names of what is imported; none of a relative import."""
        whole = (self.module, *(f"{self.module}.{name}" for name in self.names))
        return () if self.level else whole


# Variables by which a script learns which of the ranks it is.
_RANK_TEXT = re.compile(
    r"(?:SLURM|OMPI|PMIX?|MV2|PALS|HOROVOD|FLUX)_[A-Z_]{1,40}\Z|"
    r"(?:(?:LOCAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_ADDR|INIT_METHOD|TF_CONFIG)\Z"
)
_LOCALHOST = ("localhost", "127.0.0.1", "tcp://localhost:", "tcp://127.0.0.1:")
_SWITCHES = ("store_true", "store_false", "store_const", "count", "help", "version", "append_const")
_BLOCKS = (ast.mod, ast.stmt, ast.ExceptHandler)
# What may make a module available whose place cannot be foreseen.
_CHANGES = {
    *("sys.path", "sys.modules", "sys.meta_path", "sys.path_hooks", "exec"),
    *("site.addsitedir", "pyximport.install", "importlib.import_module"),
    "importlib.util.spec_from_file_location",
}


@dataclass
class PythonFile:
    """The imports, calls and definitions of one file, in the order of its text.

    Attributes:
        is_main: it is the program itself.
        imports: its import statements.
        calls: the functions and classes that it calls, by their full names.
        options: that its argparse defines -> whether a value follows.
        constructions: objects of imported classes that it makes.
        texts: texts that name a rank's variable.
        doubt: why its imports may find modules that cannot be foreseen; empty: there is no reason.
        meaning: what names stand for: ``mp`` -> ``torch.multiprocessing``.
    """

    is_main: bool
    imports: list[ImportStatement] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)
    options: dict[str, bool] = field(default_factory=dict)
    constructions: list[Construction] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    doubt: str = ""
    meaning: dict[str, str] = field(default_factory=dict)

    def read(self, tree: ast.Module) -> None:
        """Read a syntax tree.

        Raises:
            RecursionError: an expression is nested too deeply.
        """
        called: list[ast.expr] = []
        nodes: list[tuple[ast.AST, bool]] = [(tree, True)]
        while nodes:
            node, is_certain = nodes.pop()
            within = is_certain and (not isinstance(node, _BLOCKS) or self._is_always_run(node))
            children = [child for child in ast.iter_child_nodes(node) if child._fields]
            nodes += [(child, within) for child in reversed(children)]
            self._visit(node, is_certain)
            if isinstance(node, ast.Call):
                called.append(node.func)
                self._call(node)
            called += getattr(node, "decorator_list", ())  # Python calls them, too.
        # A name may be imported below the function that uses it.
        self.calls = {name for each in called if (name := self._full_name(each))}

    def _is_always_run(self, node: ast.AST) -> bool:
        """Return whether what stands directly in a node runs whenever the node does."""
        if isinstance(node, ast.If) and not node.orelse:
            return self.is_main and ast.unparse(node.test) == "__name__ == '__main__'"
        return isinstance(node, ast.Module | ast.ClassDef)

    def _visit(self, node: ast.AST, is_certain: bool) -> None:
        """Note what one node imports, assigns or names."""
        match node:
            case ast.Import(names=names):
                for alias in names:
                    self.imports.append(ImportStatement(is_certain, node.lineno, alias.name))
                    self.meaning[alias.asname or alias.name] = alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                taken = tuple(alias.name for alias in names)
                statement = ImportStatement(is_certain, node.lineno, module or "", taken, level)
                self.imports.append(statement)
                for alias in names:
                    name = f"{module}.{alias.name}" if module else alias.name
                    self.meaning[alias.asname or alias.name] = name
            case ast.Constant(value=str(text)) if _RANK_TEXT.match(text):
                self.texts.add(text)
            case ast.keyword(arg="MASTER_ADDR" | "init_method", value=value):
                self._meet(value)
            case ast.Assign(
                targets=[ast.Subscript(slice=ast.Constant(value="MASTER_ADDR"))], value=value
            ):
                self._meet(value)
            case ast.Name() | ast.Attribute():
                name = self._full_name(node)
                if name in _CHANGES:
                    self.doubt = f"only a run shows what the script does with {name}"

    def _meet(self, address: ast.expr) -> None:
        """Note that ranks meet at localhost, where those of other nodes are not."""
        match address:
            case (
                ast.JoinedStr(values=[ast.Constant(value=str(text)), *_])
                | ast.Constant(value=str(text))
            ) if text.startswith(_LOCALHOST):
                self.texts.add("MASTER_ADDR=localhost")

    def _call(self, node: ast.Call) -> None:
        """Note the option of argparse or the object that a call makes."""
        name = self._full_name(node.func)
        head, _, last = name.rpartition(".")
        is_made = bool(head) and last[:1].isupper()
        if not is_made and last != "add_argument":
            return
        named = {key.arg: _constant(key.value) for key in node.keywords if key.arg}
        if last == "add_argument":
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            flags = [word for word in words if isinstance(word, str) and word.startswith("--")]
            self.options |= dict.fromkeys(flags[:1], named.get("action") not in _SWITCHES)
        else:
            is_whole = not node.args and len(named) == len(node.keywords)
            self.constructions.append(Construction(name, node.lineno, named, is_whole))

    def _full_name(self, node: ast.expr) -> str:
        """Return ``mp.spawn`` as ``torch.multiprocessing.spawn``; empty if nothing is named."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return parts[-1] if parts else ""
        return ".".join([self.meaning.get(node.id, node.id), *parts])


def _constant(node: ast.expr) -> int | str | None:
    """Return a number or a text that is written out; None for another expression."""
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = ast.literal_eval(node)
        if isinstance(value, int | str) and not isinstance(value, bool):
            return value
    return None
