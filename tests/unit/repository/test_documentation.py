"""docs/models.md shows every key of model.yaml, and what it shows can be loaded."""

import re

import msgspec

from ksrv.handlers.runner import Runner
from ksrv.repository.model_keys import ModelKeys, UnpackedKeys
from ksrv.repository.model_yaml import load_model_config
from ksrv.source import ModelSource
from ksrv.spec import ImageSpec
from tests.support.paths import ROOT

TEXT = (ROOT / "docs/models.md").read_text()
[SETTINGS] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
[HANDLER] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def keys_of(struct):
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def test_the_documented_settings_are_valid_and_complete(tmp_path):
    for name in ("weights.pt", "net.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "handler.py").write_text(HANDLER)
    (tmp_path / "index_to_name.json").write_text("{}")
    (tmp_path / "model.yaml").write_text(SETTINGS)
    loaded = load_model_config(tmp_path)
    assert loaded.inputs[0].image.shorter_side == 256
    shown = set(re.findall(r"^(\w+):", SETTINGS, re.MULTILINE))
    assert shown == keys_of(ModelKeys)
    image = SETTINGS.partition("    image:")[2].partition("outputs:")[0]
    assert set(re.findall(r"^      (\w+):", image, re.MULTILINE)) == set(ImageSpec.__slots__)


def test_the_keys_beside_torchserve_are_documented():
    text = (ROOT / "docs/torchserve.md").read_text()
    [shown] = re.findall(r"Beside `torchserve:`(.*?)archive's own settings", text, re.DOTALL)
    assert {"torchserve", *re.findall(r"`(\w+)`", shown)} == keys_of(UnpackedKeys)


def test_the_documented_handler_can_be_loaded(tmp_path):
    (tmp_path / "handler.py").write_text(HANDLER)
    (tmp_path / "model.yaml").write_text("handler: handler.py\nparameters: {least: 0.5}\n")
    source = ModelSource(
        name="m", version="", folder=tmp_path, root=tmp_path, config=load_model_config(tmp_path)
    )
    runner = Runner(source)
    runner.load()
    assert runner.handler.least == 0.5
    runner.close()
