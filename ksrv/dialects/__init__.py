"""The dialects: what other servers' files, routes and clients need, one folder for each server.

This file is imported with each of their modules, also in handler processes, so it imports none of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ksrv.dialects.dialect import Dialect

GROUP = "ksrv.dialects"
"""The group of entry points by which third parties register dialects."""

BUILT_IN = {
    "kserve_v1": "ksrv.dialects.kserve_v1.dialect:DIALECT",
    "torchserve": "ksrv.dialects.torchserve.dialect:DIALECT",
    "triton": "ksrv.dialects.triton.dialect:DIALECT",
    "openvino": "ksrv.dialects.openvino.dialect:DIALECT",
    "openai": "ksrv.dialects.openai.dialect:DIALECT",
}
"""The built-in dialects. Routes of a later dialect replace the same routes of an earlier dialect."""


class DialectError(Exception):
    """A registered dialect that cannot be used; the text names the dialect and its package."""


def load_dialects() -> "tuple[Dialect, ...]":
    """Return the built-in dialects, then the dialects of third parties.

    Raises:
        DialectError: A dialect cannot be imported, is no `Dialect`, or has the name of another dialect.
    """
    from importlib.metadata import EntryPoint, entry_points

    from ksrv.dialects.dialect import Dialect

    points = [EntryPoint(name, target, GROUP) for name, target in BUILT_IN.items()]
    found: dict[str, Dialect] = {}
    for point in (*points, *entry_points(group=GROUP)):
        package = f" of the package {point.dist.name}" if point.dist is not None else ""
        named = f"the dialect {point.name!r}{package} ({point.value})"
        remedy = "correct or uninstall the package"
        try:
            dialect = point.load()
        except Exception as error:
            raise DialectError(
                f"{named} cannot be imported: {type(error).__name__}: {error}; {remedy}"
            ) from error
        if not isinstance(dialect, Dialect):
            raise DialectError(
                f"{named} is a {type(dialect).__name__}; expected an instance of ksrv.dialects.dialect.Dialect; {remedy}"
            )
        if dialect.name in found:
            raise DialectError(
                f"{named} has the name {dialect.name!r} of another dialect; expected a name that is not taken; {remedy}"
            )
        found[dialect.name] = dialect
    return tuple(found.values())
