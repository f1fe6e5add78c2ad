"""Archives of other projects' handlers and networks, with random weights, made by torch-model-archiver."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OPERATORS = Path(__file__).parents[1] / "stand_ins/torchvision_operators"
TORCHVISION = {"PYTHONPATH": str(OPERATORS)}
"""The environment in which torchvision's wheel for CUDA imports beside torch's for the CPU."""


def weights(source: Path, file: Path) -> Path:
    """Save random weights of the only network that a file defines, and return the path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    program = Path(__file__).with_name("weights_program.py")
    # torchvision's import needs the environment above, and networks of one name would be one module here.
    subprocess.run(
        [sys.executable, str(program), str(source), str(file)],
        check=True,
        capture_output=True,
        env=os.environ | TORCHVISION,
    )
    return file


def cached_weights(folder: Path) -> None:
    """Put random weights where torchvision looks, in TORCH_HOME, before it downloads the weights of its ResNet-50."""
    file = folder / "hub/checkpoints/resnet50-11ad3fa6.pth"
    file.parent.mkdir(parents=True)
    program = "import sys, torch, torchvision; torch.save(torchvision.models.resnet50().state_dict(), sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", program, str(file)],
        check=True,
        capture_output=True,
        env=os.environ | TORCHVISION,
    )


def archive(store: Path, name: str, version: str = "1.0", **options: Any) -> None:
    store.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("torch-model-archiver")), "--force"]
    given = {"model_name": name, "version": version, "export_path": store, **options}
    for option, value in given.items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    subprocess.run(command, check=True, capture_output=True)


def of_config(checkout: Path, store: Path, wanted: Sequence[str]) -> None:
    """Make the archives that TorchServe's ts_scripts/mar_config.json describes."""
    described = json.loads((checkout / "ts_scripts/mar_config.json").read_text())
    for model in described:
        if model["model_name"] in wanted:
            mar(checkout, store, model)


def mar(checkout: Path, store: Path, model: Mapping[str, str]) -> None:
    """Make one archive of the description, whose paths are relative to the checkout."""
    definition = checkout / model["model_file"]
    made = weights(definition, store.parent / "weights" / f"{model['model_name']}.pth")
    options: dict[str, Any] = {"serialized_file": made, "model_file": definition}
    handler = model["handler"]
    options["handler"] = checkout / handler if handler.endswith(".py") else handler
    if "extra_files" in model:
        extra = model["extra_files"].split(",")
        options["extra_files"] = ",".join(str(checkout / file) for file in extra)
    archive(store, model["model_name"], model["version"], **options)
    made.unlink()
