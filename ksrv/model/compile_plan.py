"""The `pt2:` section of a `model.yaml`: every form that it may have, read into one plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEYWORDS = ("backend", "mode", "dynamic", "fullgraph", "options")


class CompileError(Exception):
    """`pt2:` is malformed, or a compilation that is required failed.

    Args:
        key: The key of `pt2:` that is at fault, as a path; empty for `pt2:` itself.

    Attributes:
        message: The text without the key.
        key: The path of the key below `pt2:`.
    """

    def __init__(self, message: str, *key: str) -> None:
        self.message = message
        self.key = key
        super().__init__(f"{'.'.join(('pt2', *key))}: {message}")


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """The compilation that `pt2:` asks for.

    Attributes:
        enable: Whether to compile at all.
        required: Whether a failure fails the model.
        arguments: The keywords of `torch.compile`.
    """

    enable: bool = False
    required: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


def read_plan(section: Mapping[str, Any] | str | None) -> CompilePlan:
    """Return the compilation that a `pt2:` section asks for.

    Args:
        section: `{compile: {enable, backend, mode, dynamic, fullgraph, options}, required}`, or one
            of the older forms: a backend's name, or the keywords without `compile`. A section with
            `export` belongs to the loader and compiles nothing.

    Raises:
        CompileError: The section has another form.
    """
    if section is None:
        return CompilePlan()
    if isinstance(section, str):
        return CompilePlan(True, arguments={"backend": section})
    if not isinstance(section, Mapping):
        raise CompileError(f"expected keys and values, found {type(section).__name__}")
    required = section.get("required", False)
    if not isinstance(required, bool):
        raise CompileError("expected true or false", "required")
    rest = {key: value for key, value in section.items() if key not in ("required", "export")}
    if "compile" not in rest:
        if not rest:
            return CompilePlan(required=required)
        return CompilePlan(True, required, _arguments(rest))
    inner = rest.pop("compile")
    if rest:
        raise CompileError("cannot be used together with compile", str(next(iter(rest))))
    if not isinstance(inner, Mapping):
        raise CompileError("expected keys and values", "compile")
    enable = inner.get("enable", False)
    if not isinstance(enable, bool):
        raise CompileError("expected true or false", "compile", "enable")
    keywords = {key: value for key, value in inner.items() if key != "enable"}
    return CompilePlan(enable, required, _arguments(keywords, "compile"))


def _arguments(keywords: Mapping[str, Any], *where: str) -> dict[str, Any]:
    for key in keywords:
        if key not in KEYWORDS:
            raise CompileError(f"unknown key; known are {', '.join(KEYWORDS)}", *where, str(key))
    if keywords.get("mode") and keywords.get("options"):
        raise CompileError("mode and options exclude each other", *where)
    return {key: value for key, value in keywords.items() if value is not None}
