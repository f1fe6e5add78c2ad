"""The models of Triton's Python backend from two checkouts, laid out as the checkouts' scripts do it."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.foreign.cases import Places

METRICS_PORT = 8002
FORWARDED = "port 8002, which Triton has for its metrics, is forwarded to the HTTP address"


@dataclass(frozen=True)
class PythonModel:
    """A model of a checkout.

    Attributes:
        source: Its folder: `qa/NAME` below server/qa/python_models, or `examples/NAME` of python_backend.
        name: The name that it is served by; the folder's if empty.
        edits: Patterns in its config.pbtxt, and the replacements of test.sh.
        appended: The text that test.sh appends to its config.pbtxt.
        file: Its code in the folder.
        config: Its configuration in the folder; "" for a model without one.
    """

    source: str
    name: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    appended: str = ""
    file: str = "model.py"
    config: str = "config.pbtxt"

    @property
    def shown(self) -> str:
        """The name in the table."""
        return (
            self.source
            if self.file in ("model.py", "model_async.py")
            else f"{self.source}/{self.file}"
        )


def lay_out(models: tuple[PythonModel, ...], places: Places, folder: Path) -> list[Path]:
    """Copy models into a repository and return its path."""
    roots = {
        "qa": places.checkouts / "server/qa/python_models",
        "tests": places.checkouts / "server/qa/L0_backend_python",
        "examples": places.checkouts / "python_backend/examples",
    }
    repository = folder / "qa/L0_backend_python/models"  # one model looks at the path
    for model in models:
        kind, _, name = model.source.partition("/")
        source = roots[kind] / name
        target = repository / (model.name or source.name)
        (target / "1").mkdir(parents=True)
        inner = source / "1" if (source / "1").is_dir() else source
        for file in inner.glob("*.py"):
            if file.name == model.file:
                shutil.copy(file, target / "1/model.py")
            elif file.name != "model.py" and not file.name.endswith("client.py"):
                shutil.copy(file, target / "1" / file.name)
        config = source / model.config
        if model.config and config.is_file():
            text = config.read_text()
            for pattern, new in (*model.edits, (r"(?m)^name:.*", f'name: "{target.name}"')):
                text = re.sub(pattern, new, text)
            (target / "config.pbtxt").write_text(f"{text}\n{model.appended}")
    return [repository]
