import json
import shlex

import pytest

from ksrv.model.spec import ImageSpec, ModelSpec, SequenceLimits, TensorSpec
from ksrv.server.settings import ServerSettings
from ksrv.server.workers.banner import (
    Row,
    example_line,
    local_url,
    print_table,
)

URL = "http://127.0.0.1:8080"


def test_a_narrow_terminal_shows_every_shape(capsys, monkeypatch):
    shape = "image FP32[-1,224,224,3]"
    cells = ("cats", "1", "handler.py", "cpu", shape, "probabilities FP32[-1,1000]")
    rows = [Row((*cells, "0.10 s", "0.01 s", "yes")), Row(("dogs", "-", *["-"] * 6, "no"), "gone")]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert f"  in  {shape}" in lines and "  out probabilities FP32[-1,1000]" in lines
    assert lines[0].index("ready") == lines[1].index("yes") and "  gone" in lines
    monkeypatch.delenv("NO_COLOR")
    print_table(rows)
    assert "\x1b[32myes" in capsys.readouterr().out


def test_an_image_model_is_sent_a_picture():
    image = TensorSpec("my image", "FP32", (-1, 8, 8, 3), ImageSpec())
    words = line(image)
    assert words == ["curl", "-s", f"{URL}/v2/models/m/infer", "-F", "my image=@image.jpg"]


def test_a_server_on_every_address_is_shown_by_one_that_a_browser_opens():
    assert local_url("http://0.0.0.0:8080") == "http://127.0.0.1:8080"
    assert local_url("https://[::]:8080") == "https://[::1]:8080"
    assert local_url("http://10.0.0.0:8080") == "http://10.0.0.0:8080"


def test_the_line_shows_the_token_and_trusts_the_certificate(tmp_path):
    settings = ServerSettings(token_file="/a b/tokens", tls_cert="/x/cert.pem")
    text = example_line(ModelSpec("m"), URL, settings)
    assert "--cacert /x/cert.pem" in text
    assert "Authorization: Bearer $(grep -m1 '^[^#]' '/a b/tokens')" in text


def line(*inputs):
    return shlex.split(example_line(ModelSpec("m", inputs=inputs), URL, ServerSettings()))


@pytest.mark.parametrize(
    ("declared", "size"),
    [
        (TensorSpec("x", "FP32", (-1, 224, 224, 3)), 224 * 224 * 3 * 4),
        (TensorSpec("x", "FP16", (-1, 2)), 4),
        (TensorSpec("x", "UINT8", (-1, (100, 200), -1)), 800),
    ],
)
def test_large_and_half_precision_inputs_are_zeros_behind_the_header(declared, size):
    words = line(declared, TensorSpec("s", "BYTES", (-1,)))
    inputs = json.loads(words[0].removeprefix("H="))["inputs"]
    assert inputs[0]["parameters"] == {"binary_data_size": size}
    assert inputs[1]["data"] == ["text"]
    assert str(size) in words


def test_a_model_with_sequences_is_sent_a_whole_one():
    inputs = (TensorSpec("value", "FP32", (-1, 1)),)
    words = shlex.split(
        example_line(
            ModelSpec("m", inputs=inputs, sequences=SequenceLimits()), URL, ServerSettings()
        )
    )
    assert json.loads(words[-1])["parameters"] == {
        "sequence_id": 1,
        "sequence_start": True,
        "sequence_end": True,
    }


def test_a_model_without_declared_inputs_is_asked_what_it_is():
    assert line() == ["curl", "-s", f"{URL}/v2/models/m"]
    archive = ModelSpec("m", inputs=(TensorSpec("data", "BYTES", (-1,)),), accepts_any_inputs=True)
    asked = shlex.split(example_line(archive, URL, ServerSettings()))
    assert asked == ["curl", "-s", f"{URL}/v2/models/m"]
