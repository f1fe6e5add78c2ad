"""Reads the `pt2:` section of model.yaml, which has several forms, into a `CompilePlan` for `torch.compile`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ksrv.model.fault import Fault

KEYWORDS = ("backend", "mode", "dynamic", "fullgraph", "options")


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """How a model is compiled by `torch.compile`.

    Attributes:
        enable: Whether to compile.
        required: Whether the load fails if the compilation fails; otherwise the model runs uncompiled.
        arguments: The keywords of `torch.compile`.
    """

    enable: bool = False
    required: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


def read_plan(section: Mapping[str, Any] | str | None) -> CompilePlan:
    """Return the compilation that a `pt2:` section asks for.

    Args:
        section: `{compile: {enable, backend, mode, dynamic, fullgraph, options}, required}`, or one
            of the older forms: a backend's name, or the keywords without `compile`. The key `export` is ignored.

    Raises:
        Fault: The section has another form.
    """
    if section is None:
        return CompilePlan()
    if isinstance(section, str):
        return CompilePlan(True, arguments={"backend": section})
    if not isinstance(section, Mapping):
        raise Fault(("pt2",), f"expected keys and values, found {type(section).__name__}")
    required = section.get("required", False)
    if not isinstance(required, bool):
        raise Fault(("pt2", "required"), "expected true or false")
    rest = {key: value for key, value in section.items() if key not in ("required", "export")}
    if "compile" not in rest:
        if not rest:
            return CompilePlan(required=required)
        return CompilePlan(True, required, _arguments(rest))
    inner = rest.pop("compile")
    if rest:
        raise Fault(("pt2", str(next(iter(rest)))), "cannot be used together with compile")
    if not isinstance(inner, Mapping):
        raise Fault(("pt2", "compile"), "expected keys and values")
    enable = inner.get("enable", False)
    if not isinstance(enable, bool):
        raise Fault(("pt2", "compile", "enable"), "expected true or false")
    keywords = {key: value for key, value in inner.items() if key != "enable"}
    return CompilePlan(enable, required, _arguments(keywords, "compile"))


def _arguments(keywords: Mapping[str, Any], *where: str) -> dict[str, Any]:
    for key in keywords:
        if key not in KEYWORDS:
            raise Fault(("pt2", *where, str(key)), f"unknown key; known are {', '.join(KEYWORDS)}")
    if keywords.get("mode") and keywords.get("options"):
        raise Fault(("pt2", *where), "mode and options exclude each other")
    return {key: value for key, value in keywords.items() if value is not None}
