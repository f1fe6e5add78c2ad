"""The folders of the core name no other server; tests/test_import_arrows.py says who may import a dialect."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORE = ("ksrv/engine", "ksrv/_native", "ksrv/model", "ksrv/records", "ksrv/repository", "native")
NAMES = re.compile(r"torchserve|triton(?!_)|ovms|kserve_v1", re.IGNORECASE)


def test_the_core_names_no_other_server():
    sources = [
        file for folder in CORE for file in (ROOT / folder).rglob("*.[cphpy]*") if file.is_file()
    ]
    texts = {
        file: file.read_bytes().decode("utf-8", "replace")
        for file in sources
        if file.suffix != ".pyc"
    }
    assert texts and not [str(file) for file, text in texts.items() if NAMES.search(text)]
