"""Where the Python programs that ksrv starts find this ksrv.

They start with `python -P`, so that neither the current folder nor one beside a script comes first: a `ksrv/` or a
`logging.py` there would hide what is installed.
"""

import os
import site
from pathlib import Path

import ksrv


def with_ksrv(inherited: str) -> str:
    """Return a PYTHONPATH on which the ksrv of this process is found, from any working directory.

    Args:
        inherited: The PYTHONPATH to start from, whose folders stay first; "" for none.
    """
    found = [os.path.abspath(entry) for entry in inherited.split(os.pathsep) if entry]
    home = str(Path(ksrv.__file__).resolve().parent.parent)
    needless = home in found or home in site.getsitepackages()
    return os.pathsep.join([*found, *([] if needless else [home])])
