"""A model that is a single Python file: its name, settings and files, read without running it."""

import pytest

from ksrv.repository.handler_file import imported_files, model_name
from ksrv.repository.layout import Repository, RepositoryError

HEAD = "import sys\nfrom ksrv import BaseHandler, settings\nraise SystemExit('it was run')\n"


@pytest.fixture
def app(tmp_path):
    def write(text, name="app.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def only(path, **given):
    [entry] = Repository([path], **given).scan().values()
    return entry


def source_of(path, **given):
    entry = only(path, **given)
    assert entry.error is None
    return entry.versions[""]


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("Cats", "cats"),
        ("ImageCats", "image_cats"),
        ("HTTPCats", "http_cats"),
        ("score", "score"),
        ("_hidden", "hidden"),
        ("Res2Net", "res2_net"),
        ("", "app"),
    ],
)
def test_the_name_of_the_model(tmp_path, name, served):
    assert model_name(tmp_path / "app.py", name) == served


def test_the_settings_are_read_without_running_the_file(app):
    text = """
ROWS = 8
if sys.platform:
    @settings(
        batching={"max_batch_size": ROWS, "max_delay_ms": 1.5},
        executor="process",
        instances=2,
        parameters={"sizes": (1, 2)},
        inputs={"x": Float32[4]},
    )
    class Cats(BaseHandler): pass
"""
    path = app(HEAD + text)
    source = source_of(f"{path}:Cats")
    config = source.config
    assert (source.name, config.handler) == ("cats", f"{path}:Cats")
    assert (config.batching.max_batch_size, config.batching.max_delay_ms) == (8, 1.5)
    assert (config.executor, config.instances) == ("process", 2)
    assert (config.parameters, config.inputs) == ({"sizes": [1, 2]}, ())
    assert source_of(path).config.handler == f"{path}:Cats"  # the only handler with settings
    assert source_of(path).name == "app"


@pytest.mark.parametrize(
    "head",
    [
        "import ksrv\n@ksrv.settings",
        "import ksrv as k\n@k.settings",
        "from ksrv import settings as s\n@s",
    ],
)
def test_the_decorator_is_known_by_its_import(app, head):
    path = app(f"{head}(instances=3)\ndef score(x): return x\n")
    assert source_of(f"{path}:score").config.instances == 3


def test_unrelated_decorator_of_the_same_name_is_ignored(app):
    path = app("from other import settings\n@settings(instances=3)\ndef score(x): return x\n")
    assert source_of(f"{path}:score").config.instances == 1


def test_settings_of_the_server_win(app):
    path = app(f"{HEAD}@settings(instances=3, queue_size=7)\ndef score(x): return x\n")
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    given = {"instances": 2, "inputs": [tensor]}
    config = source_of(f"{path}:score", model_settings=given).config
    assert (config.instances, config.queue_size, config.inputs[0].shape) == (2, 7, (-1, 2))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def score(x: return x", "app.py, line 4: "),
        (
            "@settings(instanses=2)\ndef score(x): pass",
            "app.py, line 4: instanses: unknown key \\(did",
        ),
        (
            "@settings(instances=0)\ndef score(x): pass",
            "line 4: instances: expected a whole number",
        ),
        (
            "@settings(\n  batching={'max_batch': 2})\ndef score(x): pass",
            "line 5: batching.max_batch: unknown key",
        ),
        (
            "@settings(instances=count())\ndef score(x): pass",
            "line 4: instances: expected a literal",
        ),
        ("N = N\n@settings(instances=N)\ndef score(x): pass", "expected a literal.*found N"),
        ("@settings(**all)\ndef score(x): pass", "line 4: settings takes keys and values"),
        ("@settings({})\ndef score(x): pass", "line 4: settings takes keys and values"),
        ("@settings(handler='x')\ndef score(x): pass", "handler: the class or function below"),
        ("@settings(version_policy='all')\ndef score(x): pass", "a handler has no versions"),
        ("@settings(model='../x.pt')\ndef score(x): pass", "model: .* leaves the model's folder"),
        ("@settings(model='x.pt')\ndef score(x): pass", "model: the file 'x.pt' is not in"),
        ("def skore(x): pass", "has no score at its top level \\(did you mean skore\\?\\)"),
    ],
)
def test_a_file_that_cannot_be_served_says_why(app, text, error):
    path = app(HEAD + text + "\n")
    found = only(f"{path}:score").error
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(found)
    with pytest.raises(RepositoryError, match=error):
        Repository([f"{path}:score"]).check()


def test_star_imports_are_resolved_at_load(app):
    path = app("from others import *\n")
    assert source_of(f"{path}:score").config.handler == f"{path}:score"


@pytest.mark.parametrize(
    "code",
    [
        "for score in (max, min): pass\n",
        "while True:\n    score = max\n    break\n",
        "import contextlib\nwith contextlib.nullcontext(max) as score: pass\n",
        "match max:\n    case score: pass\n",
        "try:\n    score = max\nexcept* ValueError: pass\n",
        "def __getattr__(name): return max\n",
    ],
)
def test_names_in_compound_statements_are_resolved_at_load(app, code):
    path = app(code)
    assert source_of(f"{path}:score").config.handler == f"{path}:score"


def test_settings_that_are_given_have_no_line(app):
    path = app("def score(x): return x\n")
    entry = only(f"{path}:score", model_settings={"batchin": 1})
    assert "serve(): batchin: unknown key" in entry.error


def test_several_handlers_with_settings_need_a_name(app):
    path = app(f"{HEAD}@settings()\ndef a(x): pass\n@settings()\ndef b(x): pass\n")
    assert "holds several handlers (a, b); name one" in only(path).error


def test_a_missing_file_and_a_file_that_cannot_be_read(app, tmp_path):
    with pytest.raises(RepositoryError, match=r"app.py:Cats: no such file or folder"):
        Repository([tmp_path / "app.py:Cats"]).scan()
    (tmp_path / "bytes.py").write_bytes(b"\0\xff")
    assert "bytes.py" in only(tmp_path / "bytes.py").error


def test_too_long_path_is_reported(app, tmp_path):
    long = "x" * 300
    for path in (tmp_path / long, tmp_path / f"app.py:{long}", tmp_path / long / "app.py"):
        with pytest.raises(RepositoryError, match="no such file or folder"):
            Repository([path]).scan()
    path = app("def score(x): return x\n")
    assert "is not a model name" in only(f"{path}:{long}").error


def test_a_file_in_a_package_is_imported_from_the_packages_folder(app, tmp_path):
    app("", "shop/__init__.py")
    app("", "shop/models/__init__.py")
    app("BY = 2\n", "shop/shift.py")
    path = app("from ..shift import BY\ndef score(x): return x\n", "shop/models/cats.py")
    source = source_of(f"{path}:score")
    assert (source.root, source.config.handler) == (tmp_path, f"{path}:score")
    assert {name.removeprefix(f"{tmp_path}/") for name in source.files} >= {
        "shop/models/cats.py",
        "shop/shift.py",
    }


def test_the_files_of_a_handler_are_those_that_it_imports(app, tmp_path):
    app("import c.d\nimport os\n", "b.py")
    app("", "c/__init__.py")
    app("from . import e\nfrom app import x\n", "c/d.py")
    app("", "c/e.py")
    app("import broken(\n", "broken.py")
    app("", "other.py")
    path = app("def late():\n    from b import x\n    import broken\n")
    found = {str(one.relative_to(tmp_path)) for one in imported_files(path, tmp_path)}
    assert found == {"app.py", "b.py", "broken.py", "c/__init__.py", "c/d.py", "c/e.py"}
