"""Folders with an MLmodel, as the repository reads them. MLflow is not needed."""

import json
import pickle
import zipfile

import pytest
import yaml

from ksrv.dialects.registry import formats
from ksrv.repository.layout import Repository
from ksrv.testing import Server, ServerFailed

COLUMNS = [
    {"type": "long", "name": "age", "required": True},
    {"type": "double", "name": "income", "required": False},
    {"type": "string", "name": "city"},
    {"type": "array", "name": "tags", "items": {"type": "string"}},
]
SKLEARN = {"python_function": {"loader_module": "mlflow.sklearn"}, "sklearn": {"code": None}}


def tensor(dtype="float32", shape=(-1, 4), **more):
    return {"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": list(shape)}, **more}


def write(folder, *, signature=None, settings="", **keys):
    """Write an MLmodel, and a model.yaml if there are settings."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"flavors": SKLEARN, "mlflow_version": "3.1.0", **keys}
    if isinstance(signature, dict):
        signature = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in signature.items()
        }
    if signature is not None:
        document["signature"] = signature
    (folder / "MLmodel").write_text(yaml.safe_dump(document))
    if settings:
        (folder / "model.yaml").write_text(settings)
    return folder


def entry(folder):
    (found,) = Repository([folder], formats()).look().values()
    return found


def source(folder):
    (found,) = entry(folder).versions.values()
    return found


def config(folder):
    found = source(folder)
    assert found.error is None
    return found.config


def error(folder):
    return source(folder).error


def shown(tensors):
    return [(one.name, one.datatype, one.shape, one.optional) for one in tensors]


def test_columns_of_the_signature_are_inputs(tmp_path):
    signature = {"inputs": COLUMNS, "outputs": [{"type": "double", "name": "risk"}]}
    found = config(write(tmp_path / "m", signature=signature))
    assert shown(found.inputs) == [
        ("age", "INT64", (-1,), False),
        ("income", "FP64", (-1,), True),
        ("city", "BYTES", (-1,), False),
        ("tags", "BYTES", (-1,), False),
    ]
    assert shown(found.outputs) == [("risk", "FP64", (-1,), False)]
    assert found.executor == "process"


def test_tensors_of_the_signature_are_inputs(tmp_path):
    signature = {"inputs": [tensor(name="x"), tensor("int64", [3], name="n")]}
    found = config(write(tmp_path / "m", signature=signature))
    assert shown(found.inputs) == [("x", "FP32", (-1, 4), False), ("n", "INT64", (3,), False)]


def test_tensors_without_a_name_get_one(tmp_path):
    signature = {"inputs": [tensor()], "outputs": [tensor("int64", [-1]), tensor("str", [-1])]}
    found = config(write(tmp_path / "m", signature=signature))
    assert [one.name for one in found.inputs] == ["input"]
    assert [(one.name, one.datatype) for one in found.outputs] == [
        ("predict_0", "INT64"),
        ("predict_1", "BYTES"),
    ]


def test_report_names_flavours_and_the_defaults_of_parameters(tmp_path):
    params = [{"name": "scale", "default": 2.0, "type": "double", "shape": None}]
    lines = entry(write(tmp_path / "m", signature={"params": params})).report.lines()
    assert lines == [
        "flavors: sklearn, python_function; mlflow.pyfunc loads the model",
        "mlflow_version: saved by MLflow 3.1.0",
        "signature: none: requests may have any inputs",
        "signature.params: scale=2.0; parameters of a request",
    ]


def test_model_yaml_beside_mlmodel_sets_what_needs_no_file(tmp_path):
    settings = "instances: 2\nbatching: {max_batch_size: 8}\npython: /opt/x\nenv: {A: 1}\n"
    found = config(write(tmp_path / "m", signature={"inputs": COLUMNS}, settings=settings))
    assert (found.instances, found.batching.max_batch_size, found.python) == (2, 8, "/opt/x")
    assert found.env == {"A": "1"}


def test_model_yaml_with_a_handler_takes_precedence(tmp_path):
    folder = write(tmp_path / "m", settings="handler: own.py\n")
    (folder / "own.py").write_text("def handle(batch, context): return batch\n")
    assert config(folder).handler.startswith(str(folder / "own.py"))


def test_versions_are_folders(tmp_path):
    for version in ("1", "2", "10"):
        write(tmp_path / "m" / version)
    assert list(entry(tmp_path / "m").versions) == ["10"]
    (tmp_path / "m/model.yaml").write_text("version_policy: {specific: [1, 2]}\n")
    assert list(entry(tmp_path / "m").versions) == ["1", "2"]
    (tmp_path / "m/model.yaml").write_text("version_policy: {specific: [3]}\n")
    assert "names the versions 3, but the folder has 1, 2, 10" in entry(tmp_path / "m").error


def write_pickle(path):
    path.write_bytes(pickle.dumps({"weights": [1, 2]}))


def write_torch(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("model.pkl", write_pickle),
        ("model.statsmodels", write_pickle),
        ("data/model.pth", write_torch),
        ("model.joblib", lambda path: path.write_bytes(b"x\x9c")),
    ],
)
def test_pickle_needs_trust(tmp_path, name, make):
    folder = write(tmp_path / "m")
    (folder / name).parent.mkdir(exist_ok=True)
    make(folder / name)
    said = error(folder)
    assert f"{folder / name} is a pickle, and loading a pickle runs the code in it" in said
    assert f"write the line 'trust: pickle' into {folder / 'model.yaml'}" in said
    assert "serialization_format='skops'" in said
    (folder / "model.yaml").write_text("trust: pickle\n")
    assert config(folder).trust == "pickle"


@pytest.mark.parametrize("name", ["model.skops", "model.pt2"])
def test_archive_without_a_pickle_needs_no_trust(tmp_path, name):
    folder = write(tmp_path / "m")
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("schema.json", "{}")
    assert config(folder).trust is None


BAD = [
    ({"flavors": {"spark": {}}}, "line 1: flavors: has spark, and ksrv loads models by the flavour python_function"),
    ({"flavors": None}, "flavors: expected the flavours by name, found nothing"),
    ({"signature": 3}, "signature: expected the keys inputs, outputs and params; save the model again"),
    ({"signature": {"inputs": "[{"}}, "signature.inputs: is not JSON: "),
    ({"signature": {"inputs": "[3]"}}, "signature.inputs: is not a JSON list of objects"),
    ({"signature": {"inputs": '[{"type": "decimal"}]'}}, "signature.inputs[0]: unknown type 'decimal'; known are tensor"),
    ({"signature": {"inputs": '[{"type": "tensor"}]'}}, "signature.inputs[0]: is not a tensor"),
    ({"signature": {"inputs": json.dumps([tensor("complex64")])}}, "KServe v2 has no tensors of complex64"),
    ({"signature": {"inputs": json.dumps([tensor(shape=[-3])])}}, "KServe v2 has no tensors of float32 [-3]"),
    ({"signature": {"inputs": json.dumps([tensor("nonsense")])}}, "is not a tensor: "),
    (
        {"signature": {"inputs": '[{"type": "long", "name": "a"}, {"type": "long", "name": "a"}]'}},
        "signature.inputs[1]: the name 'a' is there twice",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "said"), BAD)
def test_wrong_mlmodel_is_refused_with_the_key(tmp_path, keys, said):
    found = error(write(tmp_path / "m", **keys))
    assert found.startswith(str(tmp_path / "m/MLmodel")) and said in found


@pytest.mark.parametrize(
    ("text", "said"),
    [("[1, 2]", "expected keys and values"), ("a: [", "line 1"), ("a: 1\n\tb: 2", "no tabs")],
)
def test_mlmodel_that_is_no_mapping_is_refused(tmp_path, text, said):
    folder = write(tmp_path / "m")
    (folder / "MLmodel").write_text(text)
    assert str(folder / "MLmodel") in error(folder) and said in error(folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("trust: all\n", "trust: expected one of pickle, found 'all'"),
        ("trusts: pickle\n", "did you mean trust?"),
        ("executor: inline\n", "executor: unknown key"),
        ("batching: {max_batch_size: 8}\n", "joins the rows of requests, and it has no"),
        ("version_policy: {latest: 0}\n", "version_policy.latest"),
    ],
)  # fmt: skip
def test_wrong_model_yaml_is_refused_with_the_line(tmp_path, settings, said):
    folder = write(tmp_path / "m", settings=settings)
    found = entry(folder)
    text = found.error or next(iter(found.versions.values())).error
    assert text.startswith(f"{folder / 'model.yaml'}, line 1") and said in text


def test_batching_needs_rows(tmp_path):
    signature = {"inputs": [tensor("float32", [3], name="x")]}
    folder = write(tmp_path / "m", signature=signature, settings="batching: {max_batch_size: 8}\n")
    assert "and the input 'x' has none" in error(folder)


def test_server_with_a_pickle_that_nobody_trusts_ends_and_names_the_remedy(tmp_path):
    write_pickle(write(tmp_path / "m") / "model.pkl")
    with (
        pytest.raises(ServerFailed, match="write the line 'trust: pickle' into"),
        Server(tmp_path / "m"),
    ):
        pass  # fmt: skip
