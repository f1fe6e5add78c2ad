"""The configuration of a load call may change how a model runs, never its code or files."""

import json

import pytest
from tritonclient.grpc import model_config_pb2

from ksrv.dialects.registry import formats
from ksrv.dialects.triton.config.call_config import CHANGEABLE
from ksrv.dialects.triton.config.model_config import MODEL_HANDLER, SEQUENCE_HANDLER
from ksrv.dialects.triton.extensions.model_repository import read_config
from ksrv.repository.layout import Repository

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
LABELLED = TENSORS.replace('"y"', '"y" label_filename: "labels.txt"')
FOLDERS = {
    "onnx": 'platform: "onnxruntime_onnx" max_batch_size: 8' + LABELLED,
    "python": 'backend: "python" parameters { key: "EXECUTION_ENV_PATH" value { string_value: "env" } }'
    + LABELLED,
    "bare": None,
}
FILES = ("model.onnx", "model.pt", "model.xml", "model.py", "other.onnx", "other.py")
CODE = ("model", "model_class", "runner", "runtime", "python", "env")
"""The settings that say which code runs and which files are read."""
HOSTILE = ("/tmp/evil", "secret.txt", "other.py", "../python/1/other.py", "python")
MESSAGE = model_config_pb2.ModelConfig.DESCRIPTOR
NEEDED = {"name": "y", "model_name": "m", "data_type": "TYPE_FP32", "dims": [4]}
NEEDED |= {"input_name": "y", "output_name": "z"}


def folder_of(root, name):
    folder = root / name
    (folder / "1").mkdir(parents=True)
    for file in FILES:
        (folder / "1" / file).write_bytes(b"")
    (folder / "labels.txt").write_text("own\n")
    (folder / "secret.txt").write_text("secret\n")
    if FOLDERS[name] is not None:
        (folder / "config.pbtxt").write_text(FOLDERS[name])
    return folder


def loaded(root, name, config):
    """The settings of a load with a configuration, and the error that refuses it."""
    repository = Repository([root], formats())
    with repository.configured(name, config):
        entry = repository.entry(name, config)
    source = next(iter(entry.versions.values()), None)
    return source and source.config, entry.error or (source and source.error)


def string_leaves(message, before=()):
    """The paths of all texts in a message's fields."""
    for field in message.fields:
        if field.name in before:
            continue
        path = (*before, field.name)
        if field.message_type is not None:
            yield from string_leaves(field.message_type, path)
        elif field.cpp_type == field.CPPTYPE_STRING:
            yield path


def with_text(path, text, message=MESSAGE):
    """A configuration in which one text is set, and what the messages around it need."""
    field = message.fields_by_name[path[0]]
    below = field.message_type
    if below is None:
        value = text
    elif below.GetOptions().map_entry and path[1] == "key":
        value = {text: "" if below.fields_by_name["value"].message_type is None else {}}
    elif below.GetOptions().map_entry:
        value = {"EXECUTION_ENV_PATH": with_text(path[1:], text, below)["value"]}
    else:
        value = with_text(path[1:], text, below)
    if field.is_repeated and not (below and below.GetOptions().map_entry):
        value = [value]
    needed = (
        {}
        if message is MESSAGE
        else {key: NEEDED[key] for key in NEEDED if key in message.fields_by_name}
    )
    return needed | {path[0]: value}


TEXTS = list(string_leaves(MESSAGE))
OTHER = {
    "max_batch_size": 3,
    "version_policy": {"all": {}},
    "dynamic_batching": {"max_queue_delay_microseconds": 5},
    "model_transaction_policy": {"decoupled": True},
    "response_cache": {"enable": True},
    "batch_input": [{}],
    "batch_output": [{}],
}
"""Values of the keys that hold no text."""


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("path", TEXTS, ids=".".join)
def test_no_text_changes_the_code_or_names_a_file(tmp_path, folder, path):
    folder_of(tmp_path, folder)
    own = loaded(tmp_path, folder, "max_batch_size: 8" + TENSORS)[0]
    ksrvs = {MODEL_HANDLER, SEQUENCE_HANDLER}
    for text in HOSTILE:
        given = json.dumps(with_text(path, text))
        config, error = loaded(tmp_path, folder, read_config({"config": given}))
        if not error:
            assert [getattr(config, one) for one in CODE] == [getattr(own, one) for one in CODE]
            assert config.labels in (None, ("own",))
            assert config.handler == own.handler or {config.handler, own.handler} == ksrvs


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("key", [one.name for one in MESSAGE.fields])
def test_every_key_is_changeable_or_the_folders(tmp_path, folder, key):
    """With a value that the model does not have."""
    folder_of(tmp_path, folder)
    paths = [path for path in TEXTS if path[0] == key]
    given = with_text(paths[0], "other") if paths else {key: OTHER[key]}
    _, error = loaded(tmp_path, folder, read_config({"config": json.dumps(given)}))
    refused = f"{key}: a load call changes only" in (error or "")
    assert refused == (key not in CHANGEABLE and not (key == "parameters" and folder != "python"))


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("onnx", 'backend: "python"'),
        ("onnx", 'backend: "python" default_model_filename: "model.onnx"'),
        ("onnx", 'backend: "python" parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/tmp/evil" } }'),
        ("onnx", 'default_model_filename: "other.onnx"'),
        ("onnx", 'platform: "pytorch_libtorch"'),
        ("onnx", 'ensemble_scheduling { step { model_name: "python" } }'),
        ("bare", 'backend: "python"'),
        ("bare", 'backend: "python" parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/tmp/evil" } }'),
        ("bare", 'default_model_filename: "other.py"'),
        ("python", 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/tmp/evil" } }'),
        ("python", 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "../evil.tar.gz" } }'),
        ("python", 'parameters { key: "script" value { string_value: "evil.py" } }'),
        ("python", 'default_model_filename: "other.py"'),
        ("python", 'output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "secret.txt" }'),
    ],
)  # fmt: skip
def test_code_and_files_are_the_folders(tmp_path, folder, text):
    folder_of(tmp_path, folder)
    _, error = loaded(tmp_path, folder, text)
    assert "the config.pbtxt in the model's folder" in error


def test_what_a_call_leaves_out_stays_the_folders(tmp_path):
    folder_of(tmp_path, "python")
    config, error = loaded(tmp_path, "python", "max_batch_size: 3" + TENSORS)
    assert error is None
    assert (config.python, config.batching.max_batch_size) == ("env", 3)
    assert config.runner.startswith("ksrv.dialects.triton.python_backend.")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_configuration_that_was_shown_may_be_sent_back(tmp_path, folder):
    folder_of(tmp_path, folder)
    shown = loaded(tmp_path, folder, "max_batch_size: 8" + TENSORS)
    given = {"config": json.dumps(shown[0].configuration)}
    config, error = loaded(tmp_path, folder, read_config(given))
    assert error is None
    assert config.configuration == shown[0].configuration
