"""The same handlers on the real torchserve package's Python service and on ksrv's: equal frames.

The real package is in a separate virtual environment under build/, made on first use, which sees
this environment's torch and numpy. If it cannot be installed, the test is skipped with the reason.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

from ksrv.dialects.torchserve.api.entry import BUILT_IN
from tests.support.paths import ROOT
from tests.support.torchserve.archives import HANDLERS, LABELS
from tests.support.torchserve.golden_models import TEN_LABELS, encoded, picture

pytestmark = pytest.mark.long

PLACE = ROOT / "build" / "torchserve-venv"
PACKAGES = ["torchserve==0.12.0", "psutil", "enum-compat"]
SUPPORT = ROOT / "tests" / "support" / "torchserve"
PROGRAM = SUPPORT / "service_program.py"
RUNNER_PROGRAM = SUPPORT / "runner_program.py"
STAND_INS = SUPPORT / "stand_ins"

ITEMS = [
    "bytes", "str", "str_utf8", "number", "int", "true", "null", "list", "dict_item", "nan",
    "tuple_item", "unserialisable", "tensor", "exception", "cuda_message", "memory_error",
    "prediction_default", "prediction_400", "prediction_422", "prediction_413", "return_dict",
    "return_none", "return_tuple", "return_tensor", "wrong_length", "status", "metrics",
]  # fmt: skip


@pytest.fixture(scope="session")
def real_python():
    """The interpreter of an environment with the real torchserve."""
    python = PLACE / "bin" / "python"
    site = PLACE / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    if not (site / "ts").is_dir():
        made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", PLACE], check=False)
        assert made.returncode == 0
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--no-deps",
            *PACKAGES,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(PLACE)
            pytest.skip(f"torchserve cannot be installed here: {done.stderr.strip()[-300:]}")
    (site / "tested.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def body(value, kind="application/json"):
    if isinstance(value, bytes):
        return {"body": {"base64": base64.b64encode(value).decode(), "type": kind}}
    return {"body": {"value": value, "type": kind}}


def model(
    tmp_path, files, name, handler, *, copies=(), settings=None, labels=None, vocabulary=None
):
    """Lay an unpacked archive out; return its part of a case."""
    folder = tmp_path / name
    (folder / "MAR-INF").mkdir(parents=True)
    manifest = {"modelName": name, "modelVersion": "1.0", "handler": handler}
    for key, file in copies:
        source = HANDLERS / file if file.endswith(".py") else files / file
        shutil.copy(source, folder)
        manifest[key] = file
    if handler not in BUILT_IN:
        shutil.copy(HANDLERS / (handler.partition(":")[0].removesuffix(".py") + ".py"), folder)
    if settings is not None:
        (folder / "model-config.yaml").write_text(json.dumps(settings))
        manifest["configFile"] = "model-config.yaml"
    if labels is not None:
        (folder / "index_to_name.json").write_text(json.dumps(labels))
    if vocabulary is not None:
        shutil.copy(files / vocabulary, folder)
    document = {"runtime": "python", "model": manifest}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(document))
    return {"id": name, "name": name, "folder": str(folder), "handler": handler}


def pictures():
    """Image files of several forms and sizes, as bodies; RGB, because the real handlers take no other."""
    image = picture()
    return [
        body(encoded(image), "image/png"),
        body(encoded(image.resize((300, 500)), "JPEG", quality=80), "image/jpeg"),
        body(encoded(image.crop((0, 0, 100, 90)), "JPEG", progressive=True), ""),
        body(base64.b64encode(encoded(image.crop((100, 0, 356, 256)))).decode(), "text/plain"),
    ]


def built_in(tmp_path, files):
    """The built-in handlers on the recorded models, with whole batches if the real one can."""
    seen = pictures()
    alone = [[one] for one in seen]

    def made(name, handler, serialized, batches, **options):
        copies = [("serializedFile", serialized)]
        case = model(tmp_path, files, name, handler, copies=copies, **options)
        return case | {"batches": batches}

    numbers = body([[[0.25] * 224] * 224] * 3)
    faults = [[body(b"no image", "")], [body(b"", "")], [{"image": seen[0]["body"]}]]
    texts = [
        "it is very good",
        "It's not a <b class='x'>b</b>ad Caf\u00e9... ",
        "It\u2019s 3 bad, a&amp; b",
        "DON'T can't won't ain't",
        'very good, (not) bad! it is "a" b',
    ]
    base = made("base", "base_handler", "line.pt", [[body([1.0, 2, 3, 4]), body([0.0] * 4)]])
    return [
        made("cls", "image_classifier", "cls.pt", [*alone, seen, [numbers, seen[0]], *faults],
             labels=TEN_LABELS),
        made("unlabelled", "image_classifier", "cls.pt", [seen[:2]]),
        made("seg", "image_segmenter", "seg.pt", [seen[:1], seen[1:3]]),
        made("det", "object_detector", "det.pt", [*alone, seen[:1] * 3, *faults],
             labels=TEN_LABELS),
        made("words", "text_classifier", "words.pt", [[body(text, "text/plain")] for text in texts],
             labels=LABELS, vocabulary="source_vocab.pt"),
        base | {"envelope": "body"},
    ]  # fmt: skip


def cases(tmp_path, files):
    numbers = [[body([1, 2, 3, 4])], [body([1, 2, 3, 4]), {"data": {"value": [0, 0, 0, 0.5]}}]]
    mistakes = [[body("text")], [body([1, 2])], [body([1, 2, 3, 4]), body({"bad": 1})]]
    script = [("serializedFile", "line.pt")]
    eager = [("serializedFile", "line.pth"), ("modelFile", "line.py")]

    def made(name, handler, batches, *, envelope=None, **options):
        case = model(tmp_path, files, name, handler, **options) | {"batches": batches}
        return case | {"envelope": envelope} if envelope else case

    instances = {"instances": [[1], {"b64": "aGVsbG8="}]}
    images = {"instances": [{"b64": "aGVsbG8="}, {"img": {"b64": "aGVsbG8="}, "k": 1}]}
    v2 = {
        "id": "q",
        "inputs": [
            {"name": "a", "shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]},
            {"name": "b", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]},
        ],
    }
    compiled = {"pt2": {"compile": {"enable": True, "backend": "eager"}}}
    unwrapped = "envelope_handler.py"
    return [
        made("script", "numbers_handler.py", numbers + mistakes, copies=script, labels=LABELS),
        made("eager", "numbers_handler.py", numbers, copies=eager),
        made("compiled", "numbers_handler.py", numbers, copies=eager, settings=compiled),
        made("outcome", "outcome_handler.py", [[body({"mode": mode})] * 2 for mode in ITEMS]),
        made("seen", "seen_handler.py", [[body(b"abc", ""), body("h\u00e9")]], settings={"own": [1]}),
        made("function", "function_handler.py", [[body([1])], [body([1])] * 3]),
        made("named", "function_handler:named", [[body([1])]]),
        made("two", "two_classes_handler.py", []),
        made("profiled", "profiled_handler.py", [[body([1, 2, 3, 4])]], copies=script),
        made("micro", "micro_handler.py", [[body([n, 0, 0, 0]) for n in range(4)]], copies=script),
        made("session", "session_handler.py", [[body([-1, 2, -3, 4])]],
             copies=[("serializedFile", "relu.onnx")]),
        made("body", unwrapped, [[body([1, 2]), {"data": {"value": {"a": 1}}}]], envelope="body"),
        made("json", unwrapped, [[body(instances), body(images)], [body({"foo": 1})]],
             envelope="json"),
        made("kserve", unwrapped, [[body(instances)], [body(b'{"instances": [[1]]}')]],
             envelope="kserve"),
        made("kservev2", "typed_handler.py", [[body(v2)], [body({"inputs": 1})]], copies=script,
             envelope="kservev2"),
    ]  # fmt: skip


def answers(python, kind, jobs, folder, program=PROGRAM):
    results = folder / f"{kind}.json"
    # The real image handlers import torchvision and captum; see stand_ins/ for what they get.
    path = STAND_INS if kind == "real" and program is PROGRAM else ROOT
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [python, program, jobs, results, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(results.read_text())


@pytest.fixture(scope="module")
def compared(tmp_path_factory, model_files, real_python):
    """The cases of each listing, and what either package answers to all of them in one process."""
    folder = tmp_path_factory.mktemp("differential")
    listed = {listing: listing(folder, model_files) for listing in (cases, built_in)}
    jobs = folder / "jobs.json"
    jobs.write_text(json.dumps([case for part in listed.values() for case in part]))
    real = answers(real_python, "real", jobs, folder)
    return listed, real, answers(sys.executable, "stand-in", jobs, folder)


@pytest.mark.parametrize("listing", [cases, built_in])
def test_frames_of_the_real_package_and_of_ksrv_are_equal(compared, listing):
    listed, real, ours = compared[0][listing], *compared[1:]
    for case in listed:
        expected, found = real[case["id"]], ours[case["id"]]
        if "load" in expected:
            # Both name the two classes; ksrv's says in which file they are, too.
            assert expected["text"].partition(" [")[0] in found["text"]
            continue
        assert "frames" in found, found["text"]
        for number, pair in enumerate(zip(expected["frames"], found["frames"], strict=True)):
            theirs, own = map(base64.b64decode, pair)
            assert own == theirs, f"batch {number} of {case['id']}"
    assert sum(len(real[case["id"]].get("frames", ())) for case in listed) == sum(
        len(case["batches"]) for case in listed
    )


OWN_ENVELOPE = """
from ts.torch_handler.request_envelope.base import BaseEnvelope

class Reversed(BaseEnvelope):
    def parse_input(self, data):
        return [row["body"][::-1] for row in data]

    def format_output(self, answers):
        return [str(answer["type"]) for answer in answers]
"""


def folders(tmp_path, files):
    """Folders with a handler and a model.yaml, and for each its batches: bodies, and whether streamed."""
    modes = [([{"mode": mode}] * 2, False) for mode in ITEMS if mode != "tensor"]
    modes += [([{"mode": "stream"}] * 2, True), ([{"mode": "stream"}] * 2, False)]
    numbers = [([[1, 2, 3, 4], [0, 0, 0, 1]], False)]
    made = [
        ("outcome", "outcome_handler.py", [], "", modes),
        ("numbers", "numbers_handler.py", ["line.pt"], "model: line.pt\n", numbers),
        ("micro", "micro_handler.py", ["line.pt"], "model: line.pt\n", numbers),
        (
            "enveloped",
            "envelope_handler.py",
            [],
            "envelope: own_envelope\n",
            [(["ab", "c"], False)],
        ),
    ]
    found = []
    for name, handler, copies, lines, batches in made:
        folder = tmp_path / name
        folder.mkdir()
        # Without an archive around it, a handler of TorchServe's is known by this import.
        (folder / handler).write_text("import ts\n" + (HANDLERS / handler).read_text())
        for file in copies:
            shutil.copy(files / file, folder)
        (folder / "own_envelope.py").write_text(OWN_ENVELOPE)
        (folder / "model.yaml").write_text(f"handler: {handler}\n{lines}")
        found.append((str(folder), batches))
    return found


def test_installed_torchserve_is_left_alone_and_works(tmp_path, model_files, real_python):
    """Its own classes serve the imports, and ksrv's runner answers as with the stand-in."""
    jobs = tmp_path / "jobs.json"
    jobs.write_text(json.dumps(folders(tmp_path, model_files)))
    real = answers(real_python, "real", jobs, tmp_path, RUNNER_PROGRAM)
    ours = answers(sys.executable, "stand-in", jobs, tmp_path, RUNNER_PROGRAM)
    for name, expected in ours.items():
        for place, (one, other) in enumerate(zip(expected, real[name], strict=True)):
            assert one == other, f"batch {place} of {name}"
    streamed, plain = ours["outcome"][-2:]
    assert len(streamed["chunks"]) == 3
    assert (plain["chunks"], plain["items"]) == ([], streamed["items"])
