"""Inputs of sounds: files in every form of request against soundfile and soxr, limits, and damaged files."""

import base64
import io
import random
import struct

import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.testing import Server, load
from tests.support.models import write_model

soundfile = pytest.importorskip("soundfile", reason="pip install soundfile soxr")
soxr = pytest.importorskip("soxr", reason="pip install soundfile soxr")

ECHO = "def inference(sound): return {'samples': sound}\n"
FORMATS = ("WAV", "FLAC", "OGG", "MP3")


def yaml(audio, shape="[-1, -1]", more="", datatype="FP32"):
    return (
        f"inputs: [{{name: sound, datatype: {datatype}, shape: {shape}, audio: {audio}}}]\n"
        f"outputs: [{{name: samples, datatype: FP32, shape: {shape}}}]\n{more}"
    )


MODELS = {
    "whole": yaml("{rate: 16000}"),
    "windows": yaml("{rate: 16000, window: 512, hop: 160}", "[-1, 512]"),
    "split": yaml("{rate: 8000, window: 256}", more="batching: {max_batch_size: 4, split: true}\n"),
    "padded": "inputs: [{name: sound, datatype: FP32, shape: [-1, -1], audio: {rate: 8000}, pad: {exact: true}}]\n"
    "outputs: [{name: samples, datatype: FP32, shape: [-1, sound]}]\nbatching: {max_batch_size: 8, max_delay_ms: 5}\n",
    "strict": yaml("{rate: 16000, channels: strict}"),
    "flat": yaml("{rate: 16000}", "[-1]", "batching: off\n"),
    "second": yaml("{rate: 16000}", "[-1, 16000]"),
}  # fmt: skip


def sound(form="WAV", rate=16000, seconds=0.25, channels=1, subtype=None, seed=1):
    samples = np.random.default_rng(seed).uniform(-0.9, 0.9, (int(rate * seconds), channels))
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def oracle(content, rate=16000):
    samples, own = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    samples = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    return samples if own == rate else soxr.resample(samples, own, rate)


def windows(samples, window, hop):
    rows = []
    start = 0
    while True:
        row = np.zeros(window, np.float32)
        part = samples[start : start + window]
        row[: len(part)] = part
        rows.append(row)
        if start + window >= len(samples):
            return np.stack(rows)
        start += hop


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("audio")
    for name, keys in MODELS.items():
        write_model(root, name, ECHO, keys + f"executor: {request.param}\n")
    limits = {"audio_seconds": 4, "audio_samples": 190_000}
    with Server(root, limits=limits) as running:
        yield running


def infer(server, model, content, status=200, **more):
    url = f"{server.url}/v2/models/{model}/infer"
    body = {"data": content, "headers": {"Content-Type": "audio/wav"}} | more
    answer = requests.post(url, **body, timeout=60)
    assert answer.status_code == status, answer.text
    if status != 200:
        return answer.json()["error"]
    (output,) = answer.json()["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (44100, 2), (8000, 1), (48000, 1)])
def test_samples_equal_soundfile_and_soxr(server, form, rate, channels):
    content = sound(form, rate, channels=channels)
    assert np.array_equal(infer(server, "whole", content)[0], oracle(content))
    assert np.array_equal(infer(server, "windows", content), windows(oracle(content), 512, 160))


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "IMA_ADPCM"])  # fmt: skip
def test_codings_of_wav_equal_soundfile(server, subtype):
    content = sound(subtype=subtype, rate=22050)
    assert np.array_equal(infer(server, "whole", content)[0], oracle(content))


def test_every_form_of_a_request_gives_the_same_rows(server):
    content = sound("FLAC", 44100, channels=2)
    expected = oracle(content)[None]
    code = base64.b64encode(content).decode()
    entry = {"name": "sound", "datatype": "BYTES", "shape": [1], "data": [code]}
    url = f"{server.url}/v2/models/whole"
    given = [
        infer(server, "whole", None, headers={}, files={"sound": content}),
        infer(server, "whole", None, headers={}, files={"any": ("a.flac", content)}),
        infer(server, "whole", None, headers={}, json={"inputs": [entry]}),
        infer(server, "whole", None, headers={}, json={"inputs": [entry | {"data": [{"b64": code}]}]}),
        infer(server, "whole", None, headers={}, json={"inputs": [entry | {"data": [f"data:audio/flac;base64,{code}"]}]}),
        infer(server, "whole", content, headers={"Inference-Header-Content-Length": "0", "Accept": "application/json"}),
    ]  # fmt: skip
    for body in ({"sound": code}, {"sound": {"b64": code}}):
        answer = requests.post(f"{url}/generate", json=body).json()
        given.append(np.array(answer["samples"], np.float32)[None])
    answer = requests.post(
        f"{server.url}/v1/models/whole:predict", json={"instances": [{"b64": code}]}
    )
    given.append(np.array(answer.json()["predictions"], np.float32))
    for target in (server.url, f"grpc://{server.grpc}"):
        with Client(target) as client:
            given.append(client.infer("whole", content)["samples"])
            given.append(client.infer("whole", expected)["samples"])  # the samples themselves
    assert [np.array_equal(one, expected) for one in given] == [True] * len(given)


def test_several_files_are_rows(server):
    first, other = sound(seed=1), sound("FLAC", seed=2)
    files = [("sound", first), ("sound", other)]
    expected = np.stack([oracle(first), oracle(other)])
    assert np.array_equal(infer(server, "whole", None, headers={}, files=files), expected)
    rows = infer(server, "windows", None, headers={}, files=files)
    assert np.array_equal(rows, np.concatenate([windows(one, 512, 160) for one in expected]))
    longer = [("sound", first), ("sound", sound(seconds=0.5))]
    error = infer(server, "whole", None, 400, headers={}, files=longer)
    assert "different lengths; send each as a separate request" in error


def test_windows_beyond_a_batch_are_split(server):
    content = sound(rate=8000, seconds=1)
    rows = infer(server, "split", content)
    assert np.array_equal(rows, windows(oracle(content, 8000), 256, 256))


def test_sounds_of_different_lengths_are_padded(server):
    with Client(server.url) as client:
        for seconds in (0.1, 0.2):
            content = sound(rate=8000, seconds=seconds)
            assert np.array_equal(
                client.infer("padded", content)["samples"][0], oracle(content, 8000)
            )


def test_model_without_rows_gets_one_sound(server):
    content = sound()
    assert np.array_equal(infer(server, "flat", content), oracle(content))
    files = [("sound", content), ("sound", content)]
    assert "expected [1] for one file" in infer(server, "flat", None, 400, headers={}, files=files)


def cut(content, share=0.5):
    return content[: int(len(content) * share)]


WAV = sound()
NAN = sound(subtype="FLOAT")[:-4] + struct.pack("<f", float("nan"))


@pytest.mark.parametrize(
    ("model", "content", "error"),
    [
        ("whole", b"not a sound at all", "sound 0 of the input 'sound' is not a WAV, FLAC, OGG or MP3 file"),
        ("whole", b"", "the body is empty"),
        ("whole", b"RIFF\0\0\0\0WAVE", "sound 0 of the input 'sound' cannot be read: "),
        ("whole", b"fLaC" + b"\xff" * 100, "sound 0"),
        ("whole", b"OggS" + b"\0" * 100, "sound 0"),
        ("whole", b"ID3" + b"\0" * 100, "sound 0"),
        ("whole", sound("AIFF"), "is not a WAV"),
        ("whole", cut(WAV), "ends before its last sample"),
        ("whole", cut(sound("FLAC")), "sound 0"),
        ("whole", cut(sound("MP3", seconds=1)), "sound 0"),
        ("whole", NAN, "not finite numbers"),
        ("whole", sound(seconds=0), "has no samples"),
        ("whole", sound(seconds=4.5), "has 4.5 seconds in 1 channels, above the limit --limits-audio-seconds (4 seconds)"),
        ("whole", sound(rate=48000, seconds=3, channels=3), "above the limit --limits-audio-samples (190000 samples)"),
        ("windows", sound(seconds=3.9), "--limits-audio-samples"),
        ("whole", sound(rate=500), "has 500 samples a second; 1000 to 192000 are taken"),
        ("whole", sound(rate=384000, seconds=0.01), "has 384000 samples a second"),
        ("strict", sound(channels=2), "has 2 channels; the model takes 1"),
        ("second", sound(seconds=0.5), "[1, 8000]"),
    ],
)  # fmt: skip
def test_file_that_is_no_sound_or_too_large_gets_400(server, model, content, error):
    assert error in infer(server, model, content, 400)
    assert np.array_equal(infer(server, "whole", WAV)[0], oracle(WAV))


@pytest.mark.parametrize(
    ("content", "limit"),
    [
        (sound(rate=8000, seconds=2.5), "--limits-audio-seconds"),
        (sound(rate=48000, channels=3, seconds=1), "--limits-audio-samples"),
    ],
)
def test_limits_count_all_files_of_a_request(server, content, limit):
    infer(server, "whole", content)
    files = [("sound", content)] * 2
    error = infer(server, "whole", None, 400, headers={}, files=files)
    assert error.startswith("sound 1 ") and limit in error


def test_length_of_a_wav_from_a_pipe_is_unknown(server):
    at = WAV.index(b"data") + 4
    content = WAV[:at] + b"\xff" * 4 + WAV[at + 4 :]
    assert np.array_equal(infer(server, "whole", content)[0], oracle(WAV))


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_files_get_an_answer_or_a_4xx(server, form):
    chance = random.Random(form)
    content = sound(form, rate=22050, seconds=0.1)
    for _ in range(40):
        broken = bytearray(content)
        for _ in range(chance.choice((1, 4, 32))):
            broken[chance.randrange(chance.choice((64, len(broken))))] = chance.randrange(256)
        if chance.random() < 0.3:
            broken = broken[: chance.randrange(len(broken))]
        url = f"{server.url}/v2/models/windows/infer"
        answer = requests.post(url, data=bytes(broken), headers={"Content-Type": "audio/x"})
        assert answer.status_code in (200, 400), answer.text
        assert "0x" not in answer.text  # no address of a Python object
    assert np.array_equal(infer(server, "whole", WAV)[0], oracle(WAV))


def test_wrong_shapes_of_files_get_400(server):
    code = base64.b64encode(WAV).decode()
    for shape, data in (([2, 1, 1], [code, code]), ([0], []), ([1, 2], [code, code])):
        entry = {"name": "sound", "datatype": "BYTES", "shape": shape, "data": data}
        infer(server, "whole", None, 400, headers={}, json={"inputs": [entry]})
    entry = {"name": "sound", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}
    error = infer(server, "whole", None, 400, headers={}, json={"inputs": [entry]})
    assert "expects FP32 or BYTES with sound files" in error


def test_name_of_a_file_in_a_form_is_not_taken_for_a_sound(server):
    error = infer(
        server, "whole", None, 400, data=None, headers={}, files={"sound": (None, "a.wav")}
    )
    assert "is a text and no file" in error


def test_openapi_names_the_forms_of_a_sound(server):
    document = requests.get(f"{server.url}/openapi.json").json()
    call = document["paths"]["/v2/models/whole/infer"]["post"]
    content = call["requestBody"]["content"]
    assert content["audio/*"] and content["multipart/form-data"]
    assert "input" in [each["name"] for each in call["parameters"]]


def test_metadata_names_the_keys(server):
    properties = requests.get(f"{server.url}/v2/models/windows").json()["properties"]
    assert properties["sound.audio.rate"] == "16000"
    assert properties["sound.audio.window"] == "512"
    assert "BYTES" in properties["sound.audio.accepts"]


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (yaml("{}"), "rate"),
        (yaml("{rate: 999}"), "1000"),
        (yaml("{rate: 200000}"), "192000"),
        (yaml("{rate: 16000, channels: stereo}"), "channels"),
        (yaml("{rate: 16000, hop: 10}"), "add window"),
        (yaml("{rate: 16000, window: 0}"), "window"),
        (yaml("{rate: 16000, window: 512}", "[-1, 256]"), "a window has 512 samples; the shape says 256"),
        (yaml("{rate: 16000, window: 512}", "[-1]"), "[-1, SAMPLES]"),
        (yaml("{rate: 16000}", "[-1, 2, -1]"), "not 3 dimensions"),
        (yaml("{rate: 16000}", datatype="FP16"), "sounds become FP32, not FP16"),
        (yaml("{rate: 16000, speed: 2}"), "speed"),
    ],
)  # fmt: skip
def test_audio_section_that_does_not_fit_is_refused(tmp_path, keys, error):
    write_model(tmp_path, "m", ECHO, keys)
    with pytest.raises(Exception, match=r"audio") as caught:
        load(str(tmp_path / "m")).close()
    assert error in str(caught.value)


def test_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soxr", None)
    write_model(tmp_path, "m", ECHO, MODELS["whole"])
    with pytest.raises(Exception, match="pip install soundfile soxr"):
        load(str(tmp_path / "m")).close()
