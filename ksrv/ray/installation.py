"""Imports Ray Serve, which only the extra `ray` of ksrv installs."""

from typing import Any


def ray_serve() -> Any:
    """Return the module `ray.serve`.

    Raises:
        ModuleNotFoundError: Ray Serve is not installed.
    """
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"ksrv.ray needs Ray Serve ({error}); install it with: pip install 'ray[serve]'",
            name=error.name,
        ) from error
    return serve
