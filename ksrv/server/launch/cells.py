"""Handlers that are defined in the cells of a notebook, written into a file that workers can import.

The file contains the source of the handler and of what it uses: imports, functions and classes of other cells, and
names with plain values. Other computed values are refused by name, because a worker cannot compute them again.
"""

import ast
import atexit
import builtins
import symtable
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PREFIX = "_ksrv_notebook_"
"""The prefix of the files' names. They are beside the notebook, like the files that it imports."""


class CellError(TypeError):
    """A handler of a notebook that cannot be written into a file; the text names what it uses."""


def shell() -> Any:
    """Return the running IPython shell, as a notebook's kernel has one; None in any other program."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def written(name: str) -> Path:
    """Write the handler of a notebook and what it uses into a file beside the notebook, until this process ends.

    Args:
        name: The handler's name in the notebook.

    Raises:
        CellError: It uses what cannot be written down, or the file cannot be written.
    """
    text = _Cells(shell()).source(name)
    try:
        descriptor, path = tempfile.mkstemp(f"_{name}.py", _PREFIX, Path.cwd())
    except OSError as error:
        raise CellError(
            f"{name} is written into a file of the current folder for the workers, which fails: {error}"
        ) from None
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    atexit.register(delete, path)
    return Path(path)


def delete(path: str) -> None:
    """Delete a file that `written` made; any other file stays.

    Args:
        path: The file's path, or FILE.py:NAME.
    """
    file = Path(path.rpartition(":")[0] or path)
    if file.name.startswith(_PREFIX):
        file.unlink(missing_ok=True)


class _Cells:
    """The cells that a notebook has run.

    Args:
        shell: The notebook's IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._names: dict[str, Any] = shell.user_ns
        self._cells = [shell.transform_cell(cell) for cell in self._names.get("In", ())]
        self._written: dict[str, str] = {}

    def source(self, name: str) -> str:
        """Return the text of a file with a handler in it."""
        self._write(name, name)
        postponed = "from __future__ import annotations"
        first = [postponed] if any(postponed in cell for cell in self._cells) else []
        return "\n\n".join([*first, *self._written.values()]) + "\n"

    def _write(self, name: str, handler: str) -> None:
        if name in self._written or name not in self._names:
            return  # an unknown name fails when the handler runs, as in the notebook
        self._written[name] = ""  # ends the recursion: functions may use each other
        text = self._definition(name)
        if text is None:
            text = self._plain_value(name, handler)
        else:
            for used in _used_names(text):
                self._write(used, handler)
        # A dictionary keeps the order of insertion: insert the name again, after the definitions that it uses.
        del self._written[name]
        self._written[name] = text

    def _definition(self, name: str) -> str | None:
        """Return the statement that gave a name its function, class or module; None for values."""
        for cell in reversed(self._cells):
            try:
                statements = ast.parse(cell).body
            except SyntaxError:
                continue
            for statement in reversed(statements):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    found = self._import(statement, name)
                    if found is not None:
                        return found
                elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    if statement.name == name:
                        return ast.unparse(statement)
                elif name in _assigned(statement):
                    return None
        return None

    def _import(self, statement: ast.Import | ast.ImportFrom, name: str) -> str | None:
        for alias in statement.names:
            imported = alias.asname or alias.name
            if imported == "*" and isinstance(statement, ast.ImportFrom):
                module = sys.modules.get(statement.module or "")
                if getattr(module, name, None) is self._names[name]:
                    return f"from {statement.module} import {name}"
            bound = (
                imported
                if isinstance(statement, ast.ImportFrom) or alias.asname
                else imported.split(".")[0]
            )
            if bound == name:
                made = type(statement)(**{**dict(ast.iter_fields(statement)), "names": [alias]})
                return ast.unparse(made)
        return None

    def _plain_value(self, name: str, handler: str) -> str:
        value = self._names[name]
        text = repr(value)
        try:
            plain = ast.literal_eval(text) == value
        except Exception:  # noqa: BLE001  the value's comparison may raise anything
            plain = False
        if plain:
            return f"{name} = {text}"
        raise CellError(
            f"{handler} uses {name!r}, which the notebook computed ({type(value).__name__}) and a worker cannot: compute "
            f"it in the handler's initialize, or save it to a file and load it there"
        )


def _assigned(statement: ast.stmt) -> set[str]:
    """Return the names that a statement gives values to."""
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _used_names(text: str) -> set[str]:
    """Return the global names that a statement uses, without builtins."""
    used: set[str] = set()
    for table in _tables(symtable.symtable(text, "cell", "exec")):
        whole = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or whole):
                used.add(symbol.get_name())
    return used - set(vars(builtins))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from _tables(inner)
