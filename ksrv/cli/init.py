"""`ksrv init`: writes a model folder that can be served and tested without changes, from a template."""

from pathlib import Path

import click

from ksrv.errors import did_you_mean

TEMPLATES = Path(__file__).with_name("templates")

SUFFIX = ".in"
"""The suffix of template files, so that no tool takes them for modules or tests of this package."""

_SAMPLES = {
    "tensor": "sample.json",
    "tabular": "sample.json",
    "image-classifier": "sample.jpg",
    "detector": "sample.jpg",
    "text": "sample.txt",
    "text-stream": "sample.txt",
    "torch": "sample.json",
    "one-file": "sample.jpg",
    "torchserve": "sample.txt",
}
"""The kinds of model folders, each with a folder of templates, and the sample request of each."""

KINDS = tuple(_SAMPLES)


class _Kind(click.Choice[str]):
    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        return super().get_invalid_choice_message(value, ctx) + did_you_mean(value, KINDS)


@click.command()
@click.argument("kind", type=_Kind(KINDS))
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def init(kind: str, folder: Path, force: bool) -> None:
    """Write a model folder to start from: handler, model.yaml, sample and test.

    \b
    tensor            numbers in, numbers out
    tabular           named columns in, by plain JSON; for scikit-learn, XGBoost, LightGBM
    image-classifier  images in, labels and probabilities out
    detector          images in, boxes out
    text              texts in, labels out
    text-stream       a text in, words out as they are made; for language models
    torch             a network of PyTorch
    one-file          one Python file instead of a folder
    torchserve        a TorchServe handler

    The folder's name becomes the model's name. You can serve the model at once; comments in the handler show
    what to replace by your model. Only the kind torch needs a framework.
    """  # noqa: D301 - click reads the character
    from ksrv.repository.entry import is_model_name

    name = folder.resolve().name
    if not is_model_name(name):
        raise click.UsageError(
            f"'{name}' is not a model name; expected letters, digits, '.', '_' and '-', the first of "
            f"them a letter or a digit"
        )
    # pytest refuses two test files with the same name, so tests of several models need different names.
    test = f"test_{name}.py"
    files = {
        path.name.removesuffix(SUFFIX).replace("@NAME@", name).replace("test_model.py", test): (
            path.read_text("utf-8").replace("@NAME@", name).replace("@TEST@", test)
        )
        for path in sorted((TEMPLATES / kind).glob(f"*{SUFFIX}"))
    }
    sample = _SAMPLES[kind]
    existing = [file for file in sorted({*files, sample}) if (folder / file).exists()]
    if existing and not force:
        raise click.ClickException(
            f"{folder} holds {', '.join(existing)} already; choose another folder or give --force"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        if sample not in files:
            (folder / sample).write_bytes(_picture(kind))
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be written: {error}") from error
    for file in sorted({*files, sample}):
        click.echo(f"wrote {folder / file}")
    flag = " --torchserve-api" if kind == "torchserve" else ""
    model = folder / f"{name}.py" if kind == "one-file" else folder
    click.echo(
        f"\nTry it:\n"
        f"  ksrv check {model}\n"
        f"  python {folder / test}\n"
        f"  ksrv serve {model}{flag}\n"
        f"and while it serves, in another shell:"
    )
    for line in _calls(kind, name, folder):
        click.echo(f"  {line}")


def _calls(kind: str, name: str, folder: Path) -> list[str]:
    """Return shell commands that call the model."""
    sample = folder / _SAMPLES[kind]
    if kind == "torchserve":
        return [f"curl -s http://127.0.0.1:8080/predictions/{name} -T {sample}"]
    if kind == "tabular":
        return [f"curl -s http://127.0.0.1:8080/v2/models/{name}/generate -d @{sample}"]
    stream = " --stream" if kind == "text-stream" else ""
    return [f"ksrv infer {name} {sample}{stream}", f"ksrv client {name}"]


def _picture(kind: str) -> bytes:
    """Return a sample JPEG: two bright boxes on a dark background for a detector, else a mostly red picture."""
    import cv2
    import numpy as np

    if kind == "detector":
        pixels = np.full((240, 320, 3), 20, np.uint8)
        pixels[40:120, 30:110] = 230
        pixels[150:210, 180:290] = 240
    else:
        pixels = np.full((240, 320, 3), (40, 40, 210), np.uint8)  # OpenCV's order: blue, green, red
        pixels[80:160, 120:200] = (200, 220, 220)
    encoded: bytes = cv2.imencode(".jpg", pixels)[1].tobytes()
    return encoded
