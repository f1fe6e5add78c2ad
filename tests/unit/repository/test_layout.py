"""How ksrv interprets a repository, a model's folder and a single file."""

import os
from pathlib import Path

import pytest

from ksrv.errors import HandlerFailed
from ksrv.repository.layout import Repository, RepositoryError

HANDLER = "from ksrv import BaseHandler\n\nclass H(BaseHandler):\n    pass\n"


def make(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_repository_of_every_kind(tmp_path):
    make(
        tmp_path,
        {
            "cats/model.yaml": "handler: handler.py\n",
            "cats/handler.py": HANDLER,
            "dogs/model.yaml": "model: model.onnx\nversion_policy: all\n",
            "dogs/1/model.onnx": "",
            "dogs/2/model.onnx": "",
            "dogs/10/model.onnx": "",
            "bare/3/model.onnx": "",
            "code/handler.py": HANDLER,
            "plain.onnx": "",
            "script.pt": "",
            "README.md": "",
            ".hidden/model.yaml": "",
            "_shared/data.bin": "",
        },
    )
    (tmp_path / "empty").mkdir()
    entries = Repository([tmp_path]).scan()
    assert sorted(entries) == ["bare", "cats", "code", "dogs", "plain", "script"]
    assert not [entry.error for entry in entries.values() if entry.error]
    assert list(entries["dogs"].versions) == ["1", "2", "10"]
    assert list(entries["bare"].versions) == ["3"]
    assert list(entries["cats"].versions) == [""]
    two = entries["dogs"].versions["2"]
    assert two.config.model == str(tmp_path / "dogs/2/model.onnx")
    assert (two.folder, two.root) == (tmp_path / "dogs/2", tmp_path / "dogs")
    assert entries["plain"].versions[""].config.model == str(tmp_path / "plain.onnx")
    assert entries["code"].versions[""].config.handler == str(tmp_path / "code/handler.py")


@pytest.mark.parametrize(
    ("policy", "served"),
    [("", ["10"]), ("{latest: 2}", ["2", "10"]), ("all", ["1", "2", "10"]),
     ("{specific: [2, 1]}", ["1", "2"])],
)  # fmt: skip
def test_the_policy_chooses_versions_by_number(tmp_path, policy, served):
    config = "model: m.onnx\n" + (f"version_policy: {policy}\n" if policy else "")
    make(tmp_path, {"m/model.yaml": config, **{f"m/{n}/m.onnx": "" for n in (1, 2, 10)}})
    entry = Repository([tmp_path]).scan()["m"]
    assert list(entry.versions) == served


def test_a_version_that_the_policy_names_and_the_disk_lacks_is_an_error(tmp_path):
    make(
        tmp_path,
        {"m/model.yaml": "model: m.onnx\nversion_policy: {specific: [1, 7]}\n", "m/1/m.onnx": ""},
    )
    entry = Repository([tmp_path]).scan()["m"]
    assert "7" in entry.error
    assert list(entry.versions) == ["1"]


def test_version_settings_replace_the_models(tmp_path):
    make(
        tmp_path,
        {
            "m/model.yaml": "model: m.onnx\nqueue_size: 5\nversion_policy: all\n",
            "m/1/m.onnx": "",
            "m/2/m.onnx": "",
            "m/2/model.yaml": "model: m.onnx\ntimeout_ms: 9\n",
        },
    )
    versions = Repository([tmp_path]).scan()["m"].versions
    assert (versions["1"].config.queue_size, versions["1"].config.timeout_ms) == (5, 30_000)
    assert (versions["2"].config.queue_size, versions["2"].config.timeout_ms) == (100, 9)


def test_the_policy_is_the_models_whatever_its_versions_say(tmp_path):
    make(
        tmp_path,
        {
            "m/model.yaml": "handler: handler.py\nversion_policy: all\n",
            "m/handler.py": HANDLER,
            "m/1/model.yaml": "handler: handler.py\nversion_policy: {latest: 1}\n",
            "m/2/model.yaml": "handler: handler.py\n",
        },
    )
    assert list(Repository([tmp_path]).scan()["m"].versions) == ["1", "2"]


def test_shared_files_stay_in_the_models_folder(tmp_path):
    make(
        tmp_path,
        {"m/model.yaml": "handler: handler.py\nmodel: m.onnx\n", "m/handler.py": HANDLER,
         "m/1/m.onnx": ""},
    )  # fmt: skip
    config = Repository([tmp_path]).scan()["m"].versions["1"].config
    assert config.handler == str(tmp_path / "m/handler.py")
    assert config.model == str(tmp_path / "m/1/m.onnx")


def test_one_bad_version_does_not_stop_the_others(tmp_path):
    make(
        tmp_path,
        {"m/model.yaml": "model: m.onnx\nversion_policy: all\n", "m/1/m.onnx": "",
         "m/2/other": ""},
    )  # fmt: skip
    versions = Repository([tmp_path]).scan()["m"].versions
    assert versions["1"].error is None
    assert "m.onnx" in versions["2"].error
    assert versions["2"].config is None


def test_the_newest_version_is_not_replaced_when_it_is_bad(tmp_path):
    make(
        tmp_path,
        {"m/model.yaml": "model: m.onnx\n", "m/1/m.onnx": "", "m/2/other": ""},
    )
    versions = Repository([tmp_path]).scan()["m"].versions
    assert list(versions) == ["2"]
    assert versions["2"].error


def test_one_bad_model_does_not_stop_the_others(tmp_path):
    make(
        tmp_path,
        {
            "good.onnx": "",
            "bad/model.yaml": "handlr: x\n",
            "nothing/notes.txt": "",
            "several/a.onnx": "",
            "several/b.onnx": "",
            "bad name/model.yaml": "",
            "-dash/model.yaml": "",
        },
    )
    entries = Repository([tmp_path]).scan()
    assert entries["good"].error is None
    assert "line 1: handlr: unknown key (did you mean handler?)" in entries["bad"].error
    assert str(tmp_path / "nothing") in entries["nothing"].error
    assert "a.onnx, b.onnx" in entries["several"].error
    for name in ("bad name", "-dash"):
        assert "is not a model name" in entries[name].error
        assert str(tmp_path / name) in entries[name].error
        assert not entries[name].versions


@pytest.mark.parametrize("length", [128, 129])
def test_names_have_at_most_128_characters(tmp_path, length):
    make(tmp_path, {f"{'a' * length}/handler.py": HANDLER})
    [entry] = Repository([tmp_path]).scan().values()
    assert (entry.error is None) == (length == 128)


def test_a_name_that_is_not_utf8_is_an_error_that_every_answer_can_show(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")
    (tmp_path / os.fsdecode(b"caf\xe9") / "model.yaml").write_text("handler: handler.py\n")
    [(name, entry)] = Repository([tmp_path]).scan().items()
    assert name == entry.name == "caf\\udce9"
    assert "is not a model name" in HandlerFailed(entry.error).message.encode().decode()


def test_one_models_folder_and_one_file(tmp_path):
    make(
        tmp_path,
        {"a/model.yaml": "handler: handler.py\n", "a/handler.py": HANDLER, "b/1/model.onnx": "",
         "c.pt2": ""},
    )  # fmt: skip
    entries = Repository([tmp_path / "a", tmp_path / "b", tmp_path / "c.pt2"]).scan()
    assert sorted(entries) == ["a", "b", "c"]
    assert not [entry.error for entry in entries.values() if entry.error]


def test_the_current_folder_has_its_own_name(tmp_path, monkeypatch):
    make(tmp_path, {"here/handler.py": HANDLER})
    monkeypatch.chdir(tmp_path / "here")
    entry = Repository(["."]).scan()["here"]
    assert entry.versions[""].config.handler == str(tmp_path / "here/handler.py")


def test_two_models_of_one_name_are_an_error_that_names_both(tmp_path):
    make(tmp_path, {"x/m.onnx": "", "y/m.onnx": "", "y/n.onnx": ""})
    entries = Repository([tmp_path / "x", tmp_path / "y"]).scan()
    assert str(tmp_path / "x/m.onnx") in entries["m"].error
    assert str(tmp_path / "y/m.onnx") in entries["m"].error
    assert not entries["m"].versions
    assert entries["n"].error is None


@pytest.mark.parametrize("name", ["missing", "notes.txt"])
def test_path_without_models_is_an_error(tmp_path, name):
    make(tmp_path, {"notes.txt": ""})
    with pytest.raises(RepositoryError, match=name):
        Repository([tmp_path / name]).scan()


def test_a_folder_that_cannot_be_read_does_not_stop_the_others(tmp_path, monkeypatch):
    make(tmp_path, {"good.onnx": "", "shut/model.yaml": "model: m.onnx\n"})
    iterdir = Path.iterdir

    def refuse(path):
        if path.name == "shut":
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    entries = Repository([tmp_path]).scan()
    assert entries["good"].error is None
    assert "Permission denied" in entries["shut"].error


@pytest.mark.parametrize("name", ["model.yml", "config.pbtxt", "1/model.yml"])
def test_settings_that_are_not_read_are_named(tmp_path, caplog, name):
    config = {"m/model.yaml": "handler: handler.py\n"} if name == "model.yml" else {}
    make(tmp_path, {"m/handler.py": HANDLER, f"m/{name}": "handler: other.py\n"} | config)
    repository = Repository([tmp_path])
    for _ in range(2):
        assert not repository.scan()["m"].error
    (said,) = [record.getMessage() for record in caplog.records]
    assert "the model m:" in said and f"{Path(name).name} is not read" in said
    assert "model.yaml" in said


@pytest.mark.parametrize("name", ["model.yml", "Model.yaml", "model.YAML"])
@pytest.mark.parametrize("model", ["handler.py", "a.onnx"])
def test_model_with_a_misnamed_settings_file_is_refused(tmp_path, name, model):
    make(tmp_path, {f"m/{model}": "", f"m/{name}": "batching: {max_batch_size: 8}\n"})
    error = Repository([tmp_path]).scan()["m"].error
    assert error == f"{tmp_path}/m/{name} is not read: call it model.yaml"


@pytest.mark.parametrize(
    "files",
    [
        {"handler.py": HANDLER},
        {"1/model.onnx": "", "2/model.onnx": ""},
        {"resnet.onnx": ""},
        {"resnet/model.yaml": "handler: handler.py\n", "resnet/handler.py": HANDLER},
    ],
)
def test_the_one_model_of_a_folder_takes_the_name_that_is_given(tmp_path, files):
    make(tmp_path, files)
    repository = Repository([tmp_path], model_name="cats")
    repository.check()
    [entry] = repository.scan().values()
    assert (entry.name, entry.error) == ("cats", None)
    assert {source.name for source in entry.versions.values()} == {"cats"}


def test_a_given_name_is_for_one_model_only(tmp_path):
    make(tmp_path, {"a.onnx": "", "b.onnx": ""})
    with pytest.raises(RepositoryError, match=r"model_name.*a\.onnx and .*b\.onnx; without"):
        Repository([tmp_path], model_name="cats").check()


def test_a_given_name_must_be_a_name(tmp_path):
    make(tmp_path, {"a.onnx": ""})
    with pytest.raises(RepositoryError, match="'no name' is not a model name"):
        Repository([tmp_path], model_name="no name").check()
