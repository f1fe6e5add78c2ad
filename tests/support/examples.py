"""How many examples a property is tried with: a quarter by default, all in the thorough profile."""

import os
from typing import Any

from hypothesis import HealthCheck, settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def examples(count: int, **options: Any) -> settings:
    """Settings of a property.

    Args:
        count: The number of examples with `HYPOTHESIS_PROFILE=thorough`, as `make test-slow` sets it.
        options: Further settings of hypothesis.
    """
    return settings(max_examples=count if THOROUGH else max(count // 4, 10), **options)


def load_profile() -> None:
    """Let examples take any time, which depends on what else the machine does, and try as many as `examples` asks for."""
    settings.register_profile(
        "unhurried",
        examples(100),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("unhurried")
