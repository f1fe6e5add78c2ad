"""A folder with a handler written for TorchServe."""

from pathlib import Path


def old_handler(folder: Path, text: str) -> Path:
    """Write a handler that imports a file beside it by its bare name."""
    folder.mkdir()
    (folder / "shared.py").write_text(f"TEXT = {text!r}\n")
    (folder / "handler.py").write_text(
        "import shared\n"
        "from ts.torch_handler.base_handler import BaseHandler\n"
        "class Old(BaseHandler):\n"
        "    def initialize(self, context):\n"
        "        self.initialized = True\n"
        "    def handle(self, data, context):\n"
        "        return [f\"{shared.TEXT}:{len(row['body'])}\" for row in data]\n"
    )
    return folder
