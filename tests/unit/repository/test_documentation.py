"""docs/models.md shows every key of model.yaml, and the examples there and in docs/handlers.md load."""

import re

import msgspec
import pytest
import yaml

import ksrv
from ksrv.dialects.torchserve.archive.keys import UnpackedKeys
from ksrv.handlers.batch import Batch
from ksrv.handlers.context import Context
from ksrv.model.config import Cache, JoinPolicy, Recording, Shadow, StateTensor
from ksrv.model.postprocess import PostprocessStep, Step
from ksrv.model.spec import AudioSpec, ImageSpec, Padding, SequenceLimits
from ksrv.repository.model_yaml import load_model_config
from ksrv.repository.settings.keys import ModelKeys
from ksrv.testing import load
from tests.support.paths import ROOT

TEXT = (ROOT / "docs/models.md").read_text()
[SETTINGS] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/handlers.md").read_text(), re.DOTALL)
[HANDLER] = [one for one in BLOCKS if "def initialize" in one]
SECTIONS = {
    "batching": JoinPolicy,
    "cache": Cache,
    "record": Recording,
    "shadow": Shadow,
    "sequences": SequenceLimits,
    "state": StateTensor,
}


def keys_of(struct):
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def test_the_documented_settings_are_valid_and_complete(tmp_path):
    for name in ("weights.pt", "net.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "handler.py").write_text(HANDLER)
    (tmp_path / "index_to_name.json").write_text("{}")
    # The file is not a pickle, and `trust` is refused for it.
    (tmp_path / "model.yaml").write_text(SETTINGS.replace("trust: pickle", "#"))
    loaded = load_model_config(tmp_path)
    assert loaded.inputs[0].image.shorter_side == 256
    shown = set(re.findall(r"^(\w+):", SETTINGS, re.MULTILINE))
    assert shown == keys_of(ModelKeys)
    assert loaded.inputs[4].mask_of == "ids"
    pad = SETTINGS.partition("\n    pad:")[2].partition("  - {")[0]
    assert set(re.findall(r"^      (\w+):", pad, re.MULTILINE)) == set(Padding.__struct_fields__)
    audio = SETTINGS.partition("    audio:")[2].partition("outputs:")[0]
    assert set(re.findall(r"^      (\w+):", audio, re.MULTILINE)) == set(
        AudioSpec.__struct_fields__
    )
    image = SETTINGS.partition("    image:")[2].partition("  - name: ids")[0]
    assert set(re.findall(r"^      (\w+):", image, re.MULTILINE)) == set(
        ImageSpec.__struct_fields__
    )


@pytest.mark.parametrize("section", SECTIONS)
def test_the_keys_of_a_section_are_documented(section):
    shown = yaml.safe_load(SETTINGS)[section]
    [shown] = shown if isinstance(shown, list) else [shown]
    assert set(shown) == keys_of(SECTIONS[section]) - {"datatype"}


def test_the_steps_of_postprocess_and_their_keys_are_documented():
    text = (ROOT / "docs/postprocess.md").read_text()
    first = re.findall(r"^\| `(\w+)`(?:, `\w+`)* \|", text, re.MULTILINE)
    formats = {"xyxy", "cxcywh", "yolo", "yolov5", "ssd"}
    keys = {key for kind in Step.__subclasses__() for key in kind.__struct_fields__}
    assert set(first) == keys | set(PostprocessStep.__struct_fields__) | formats


def test_the_keys_beside_torchserve_are_documented():
    text = (ROOT / "docs/migration/torchserve.md").read_text()
    [shown] = re.findall(r"Besides `torchserve:`(.*?)archive's settings", text, re.DOTALL)
    assert {"torchserve", *re.findall(r"`(\w+)`", shown)} == keys_of(UnpackedKeys)


def test_the_documented_handler_can_be_loaded(tmp_path, loaded):
    (tmp_path / "handler.py").write_text(HANDLER)
    (tmp_path / "model.yaml").write_text("handler: handler.py\nparameters: {least: 0.5}\n")
    assert loaded(tmp_path).handler.least == 0.5


def test_the_handlers_and_tests_that_are_shown_are_the_examples_or_load(tmp_path):
    examples = ROOT / "examples" / "one_file"
    shown = [one for one in BLOCKS if one != HANDLER]
    files = {path.read_text() for path in examples.glob("*bright.py")}
    assert files < set(shown)
    [words] = set(shown) - files
    (tmp_path / "words.py").write_text(words)
    with load(f"{tmp_path / 'words.py'}:Words") as model:
        assert model.infer({"text": "a"})["output"].tolist() == [b"A"]


def test_every_public_name_of_batch_and_context_is_documented():
    text = (ROOT / "docs/handlers.md").read_text()
    batch = {name for name in vars(Batch) if not name.startswith("_")} | {"names", "rows"}
    context = {name for name in vars(Context) if not name.startswith("_")}
    words = set(re.findall(r"\w+", text))
    assert batch - words == set()
    assert context - {"system_properties"} - words == set()
    assert set(ksrv.__all__) - {"__version__"} - words == {"Uint16", "Uint32", "Int16", "Int32"}
