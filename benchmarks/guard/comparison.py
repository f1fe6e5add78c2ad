"""Which paths take more instructions than the baseline says."""

from collections.abc import Callable, Mapping, Sequence

TOLERANCE = 0.03
"""By how much more a path may take."""


def above(found: Mapping[str, int], before: Mapping[str, int]) -> list[str]:
    """Return the paths that take more than they may.

    Args:
        found: The instructions of a request by path.
        before: The same in the baseline; a path that it lacks may take none.
    """
    return [name for name in found if found[name] > before.get(name, 0) * (1 + TOLERANCE)]


def worse(
    count: Callable[[Sequence[str]], Mapping[str, int]],
    names: Sequence[str],
    before: Mapping[str, int],
) -> list[str]:
    """Count all paths, then count each path above its tolerance again; return the paths that were above it twice.

    Args:
        count: Returns the instructions of a request by path, each time of another server.
        names: The paths.
        before: The baseline.
    """
    slower = above(count(names), before)
    if slower:
        print("once more, by another server:")
        slower = above(count(slower), before)
    return slower
