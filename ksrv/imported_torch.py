"""torch, where this process has imported it."""

import sys
from typing import Any


def imported_torch() -> Any:
    """Return torch's module, or None without it and while another thread still imports it.

    A handler that does not use torch must not meet a half of it while the model beside it is loaded.
    """
    torch = sys.modules.get("torch")
    is_partial = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if is_partial else torch
