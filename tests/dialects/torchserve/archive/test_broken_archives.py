"""Archives that cannot be served: the reason names archive, file, line and key, in one line."""

import json
import zipfile

import pytest
import requests
import torch

from ksrv.dialects.torchserve.archive.defaults import ArchiveDefaults
from ksrv.dialects.torchserve.archive.format import torchserve_format
from ksrv.handlers.runner import HandlerLoadError, make_runner
from ksrv.repository.format import Formats
from ksrv.repository.layout import Repository
from ksrv.testing import Server
from tests.support.models import DOUBLE, VECTOR, write_model
from tests.support.torchserve.archives import archive

BASE = (
    "from ts.torch_handler.base_handler import BaseHandler\n\n\nclass Own(BaseHandler):\n    pass\n"
)
NET = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(2, 3)\n"


def entry_of(store, defaults=None):
    (entry,) = (
        Repository([store], Formats([torchserve_format(defaults or ArchiveDefaults())]))
        .scan()
        .values()
    )
    return entry


@pytest.fixture
def made(tmp_path):
    """Make an archive: made(handler source, archive()'s options)."""
    store = tmp_path / "store"
    store.mkdir()

    def make(source=BASE, config=None, **options):
        (tmp_path / "own_handler.py").write_text(source)
        path = archive(store, "own", tmp_path / "own_handler.py", **options)
        if config is not None:
            rewrite(path, "model-config.yaml", config)
        return store

    return make


def rewrite(path, name, content):
    with zipfile.ZipFile(path) as old:
        files = {one: old.read(one) for one in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for one, data in files.items():
            new.writestr(one, content if one == name else data)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("minWorkers: 1\nbatchSize: eight\n", "line 2: batchSize: expected a whole number from 1 to 2147483647, found 'eight'"),
        ("deviceType: tpu\n", "line 1: deviceType: expected cpu or gpu, found 'tpu'"),
        ("deviceType: neuron\n", "line 1: deviceType: expected cpu or gpu, found 'neuron'"),
        ("#\n\ndeviceIds: 3\n", "line 3: deviceIds: expected a list, found 3"),
        ("envelope: [1]\n", "line 1: envelope: expected a text, found a list"),
        ("ksrv: yes\n", "line 1: ksrv: expected keys and values, found true"),
        ("batchSize: [1\nfoo: 2\n", "line 2: expected ',' or ']', but got ':'"),
        ("- 1\n", "line 1: expected keys and values, found a list"),
    ],
)  # fmt: skip
def test_wrong_settings_name_archive_file_line_and_key(made, config, text):
    store = made(config=config, settings={})
    assert entry_of(store).error == f"{store}/own.mar: model-config.yaml, {text}"


@pytest.mark.parametrize(("given", "device"), [("GPU", "auto"), ("Cpu", "cpu"), ('""', "auto")])
def test_a_device_type_is_read_as_torchserve_reads_it(made, given, device):
    source = entry_of(made(config=f"deviceType: {given}\n", settings={})).versions["1.0"]
    assert source.config.device == device


def grown(first, step):
    """Thirty aliases, each of which names the previous alias several times."""
    steps = (step.replace("NEW", f"a{n}").replace("OLD", f"a{n - 1}") for n in range(1, 30))
    return "\n".join([first, *steps])


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        (grown("a0: &a0 [x]", "NEW: &NEW [*OLD, *OLD, *OLD]"), "50000 values"),
        (grown("a0: &a0 {k: 1}", "NEW: &NEW {<<: [*OLD, *OLD, *OLD], n: 1}"), "50000 values"),
        ("a: &a [*a, *a]\n", "64 levels"),
        (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 100)}]\n", "1048576 characters"),
    ],
)
def test_growth_through_aliases_is_refused(made, config, bound):
    error = entry_of(made(config=config, settings={})).error
    assert f"more than {bound}, with what its aliases repeat" in error


def test_aliases_and_merge_keys_are_read(made):
    config = "common: &c {x: 1}\nhandler: {<<: *c, y: *c}\nother: [*c, *c]\n"
    source = entry_of(made(config=config, settings={})).versions["1.0"]
    assert source.config.dialect["torchserve"]["config"]["handler"] == {"x": 1, "y": {"x": 1}}


def test_a_handler_lies_in_its_archive(made, ts_modules):
    store = made()
    content = b'{"model": {"modelName": "own", "handler": "subprocess:call"}}'
    rewrite(store / "own.mar", "MAR-INF/MANIFEST.json", content)
    with pytest.raises(HandlerLoadError, match="'subprocess' is not in the archive"):
        make_runner(entry_of(store).versions["1.0"]).load()
    content = b'{"model": {"modelName": "own", "handler": "/srv/other.py:Own"}}'
    rewrite(store / "own.mar", "MAR-INF/MANIFEST.json", content)
    assert "handler names '/srv/other.py:Own', which is not inside" in entry_of(store).error


def test_what_is_not_served_is_refused_by_key_and_line(made):
    store = made(config="minWorkers: 1\ntorchrun:\n  nproc-per-node: 2\n", settings={})
    source = entry_of(store).versions["1.0"]
    assert source.error == (
        f"{store}/own.mar: model-config.yaml asks for settings that ksrv does not serve: "
        "torchrun: models spread over several processes are not served (line 2)"
    )


def test_wrong_settings_of_a_config_properties_name_it(made):
    defaults = ArchiveDefaults(models={"own": {"1.0": {"batchSize": 0}}})
    store = made(settings={"jobQueueSize": 3})
    expected = "models of config.properties: batchSize: expected a whole number from 1 to 2147483647, found 0"
    assert entry_of(store, defaults).error == f"{store}/own.mar: {expected}"


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ({"model": {"modelName": "own"}}, " names no handler; make the archive again with"),
        ({"runtime": "LSP", "model": {"modelName": "own", "handler": "h.py"}}, ": the runtime 'LSP' is not"),
    ],
)  # fmt: skip
def test_wrong_manifests_name_the_archive(made, manifest, text):
    store = made()
    rewrite(store / "own.mar", "MAR-INF/MANIFEST.json", json.dumps(manifest))
    assert entry_of(store).error.startswith(f"{store}/own.mar: MAR-INF/MANIFEST.json{text}")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Files that hold something else than the handler expects."""
    folder = tmp_path_factory.mktemp("weights")
    module = torch.nn.Linear(2, 2)
    torch.save(module, folder / "whole.pt")
    torch.save(module, folder / "whole.pth")
    torch.save(module.state_dict(), folder / "state.pth")
    (folder / "net.py").write_text(NET)
    return folder


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "the archive has neither a model file nor a serialized file"),
        ({"model": "state.pth"}, "state.pth is no .pt, .pt2, .onnx, or a .so"),
        ({"model": "whole.pt"}, "whole.pt is not TorchScript, and without a model file it must be"),
        ({"model": "whole.pth", "net": True}, "whole.pth holds pickled objects"),
        ({"model": "state.pth", "net": True}, "size mismatch for weight"),
    ],
)
def test_wrong_weights_say_what_was_expected(made, weights, ts_modules, options, words):
    options = dict(options)
    if options.pop("net", False):
        options["definition"] = weights / "net.py"
    store = made(files=weights, **options)
    runner = make_runner(entry_of(store).versions["1.0"])
    with pytest.raises(HandlerLoadError, match=words) as caught:
        runner.load()
    text = str(caught.value)
    assert text.startswith("the model own cannot be loaded: ")
    assert "\n" not in text


def test_a_server_names_a_lying_archive_keeps_nothing_of_it_and_serves_on(tmp_path):
    (models := tmp_path / "models").mkdir()
    (temporary := tmp_path / "temporary").mkdir()
    write_model(models, "double", DOUBLE, VECTOR)
    with Server(models, environment={"TMPDIR": str(temporary)}) as server:
        for name, content in (("cut", b"PK"), ("bomb", bytes(300 << 20)), ("liar", b"1")):
            with zipfile.ZipFile(path := models / f"{name}.mar", "w", zipfile.ZIP_DEFLATED) as made:
                made.writestr("MAR-INF/MANIFEST.json", '{"model": {"modelName": "../liar"}}')
                made.writestr("w.bin", content)
            if name == "cut":
                path.write_bytes(path.read_bytes()[:-20])
            load = f"{server.url}/v2/repository/models/{name}/load"
            answer = requests.post(load, json={}, timeout=60)
            assert answer.status_code >= 400
            assert f"{name}.mar" in answer.json()["error"]
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        infer = f"{server.url}/v2/models/double/infer"
        assert requests.post(infer, json={"inputs": [entry]}, timeout=60).status_code == 200
        left = [path for path in temporary.rglob("*") if path.is_file() and path.suffix == ".bin"]
        assert not left


def test_failure_in_the_handler_names_file_and_line(made, weights, ts_modules):
    store = made(source="import torch\nfrom ts.utils.util import nothing_of_that_name\n")
    with pytest.raises(
        HandlerLoadError, match=r"'nothing_of_that_name'.* \(own_handler\.py, line 2\)$"
    ):
        make_runner(entry_of(store).versions["1.0"]).load()
