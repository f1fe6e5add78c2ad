"""Archives for the tests, made by the real torch-model-archiver from the handlers beside this file."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging import generate_model_archive
from torch import nn

from tests.support.model_files.onnx_models import write_graph

HANDLERS = Path(__file__).parent / "handlers"
LABELS = {"0": "zero", "1": ["n01", "one"], "2": "two"}


class Line(nn.Module):
    """The line of handlers/line.py; archives hold that file, not this class."""

    def __init__(self) -> None:
        super().__init__()
        self.through = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.through(x)


def line() -> Any:
    """Return the model that turns [1, 2, 3, 4] into [2.5, 5.5, 10]."""
    model = Line().eval()
    with torch.no_grad():
        model.through.weight.copy_(torch.arange(12.0).reshape(3, 4) / 10)
        model.through.bias.copy_(torch.tensor([0.5, -0.5, 0.0]))
    return model


def write_files(folder: Path) -> None:
    """Write the model files that archives are made of."""
    model = line()
    torch.jit.trace(model, torch.zeros(1, 4)).save(str(folder / "line.pt"))
    torch.save(model.state_dict(), folder / "line.pth")
    torch.manual_seed(0)
    picture = nn.Sequential(
        nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    ).eval()
    torch.jit.trace(picture, torch.zeros(1, 3, 224, 224)).save(str(folder / "picture.pt"))
    row = ("FP32", ("n", 4))
    write_graph(folder / "relu.onnx", [("Relu", ["x"], ["y"], {})], {"x": row}, {"y": row})
    (folder / "index_to_name.json").write_text(json.dumps(LABELS))


def archive(  # one argument for each argument of the archiver
    store: Path,
    name: str,
    handler: str,
    *,
    files: Any = None,
    model: str | None = None,
    definition: Any = None,
    labels: bool = False,
    settings: Any = None,
    version: str = "1.0",
    form: str = "default",
    requirements: Any = None,
    extra: Any = (),
    file_name: Any = None,
) -> Any:
    """Make an archive in the model store."""
    work = store.parent / "work"
    work.mkdir(exist_ok=True)
    path = store / f"{file_name or name}.mar"
    extras = [str(entry) for entry in extra]
    if labels:
        extras.append(str(files / "index_to_name.json"))
    config = requirements_file = None
    if settings is not None:
        config = work / "model-config.yaml"
        config.write_text(json.dumps(settings))  # JSON is YAML
    if requirements is not None:
        requirements_file = work / "requirements.txt"
        requirements_file.write_text(requirements)
    here, temporary = os.getcwd(), tempfile.tempdir
    os.chdir(HANDLERS)
    # The archiver empties a folder of the model's name in the temporary folder.
    tempfile.tempdir = str(store.parent / "temporary")
    os.makedirs(tempfile.tempdir, exist_ok=True)
    try:
        generate_model_archive(
            ModelArchiverConfig(
                model_name=name,
                handler=str(handler),
                version=version,
                serialized_file=str(files / model) if model else None,
                model_file=str(definition) if definition else None,
                extra_files=",".join(extras) or None,
                export_path=str(work if file_name else store),
                archive_format=form,
                force=True,
                requirements_file=str(requirements_file) if requirements_file else None,
                config_file=str(config) if config else None,
            )
        )
    finally:
        os.chdir(here)
        tempfile.tempdir = temporary
    if file_name:
        (work / f"{name}.mar").rename(path)
    return path
