"""Reading a config.pbtxt: settings, a report on every key, errors with file and line."""

import os
import re

import pytest
from tritonclient.grpc import model_config_pb2

from ksrv.dialects.registry import formats
from ksrv.dialects.triton.config.model_keys import RULES
from ksrv.dialects.triton.declarations import TritonDeclarations
from ksrv.model.config import Cache, JoinPolicy, VersionPolicy
from ksrv.model.spec import SequenceLimits
from ksrv.repository.layout import Repository

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
ONNX = 'backend: "onnxruntime"\nmax_batch_size: 8\n' + TENSORS


def entry_of(root, config, *, name="m", versions=("1",), file="model.onnx", raw=None):
    folder = root / name
    for version in versions:
        (folder / version).mkdir(parents=True)
        if file:
            (folder / version / file).write_bytes(b"")
    if not versions:
        folder.mkdir()
    (folder / "config.pbtxt").write_bytes(config.encode() if raw is None else raw)
    return Repository([root], formats()).scan()[name]


def config_of(root, config, **options):
    entry = entry_of(root, config, **options)
    assert entry.error is None
    return entry.versions["1"].config


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("", "batching", JoinPolicy(max_batch_size=8)),
        ("dynamic_batching { max_queue_delay_microseconds: 1500 }", "batching",
         JoinPolicy(max_batch_size=8, max_delay_ms=1.5)),
        ("dynamic_batching { default_queue_policy { max_queue_size: 7 } }", "queue_size", 7),
        ("dynamic_batching { default_queue_policy { max_queue_size: 0 } }", "queue_size", 100),
        ("instance_group [ { count: 3 kind: KIND_CPU } ]", "instances", 3),
        ("instance_group [ { count: 3 kind: KIND_CPU } ]", "device", "cpu"),
        ("instance_group { kind: KIND_GPU gpus: [ 1 ] }", "device", "cuda:1"),
        ("instance_group { kind: KIND_GPU gpus: [ 0, 2 ] count: 2 }", "instances", 4),
        ("instance_group { kind: KIND_GPU gpus: [ 0, 2 ] count: 2 }", "device", "cuda:0,2"),
        ("instance_group [ { gpus: [ 0 ] count: 2 }, { gpus: [ 1 ] } ]", "device", "cuda:0,0,1"),
        ("instance_group { kind: KIND_GPU count: 2 }", "device", "cuda"),
        ("instance_group [ { count: 1 }, { count: 2 } ]", "instances", 3),
        ("version_policy { latest { num_versions: 2 } }", "version_policy", VersionPolicy(latest=2)),
        ("version_policy: { all: {} }", "version_policy", VersionPolicy(latest=0)),
        ("version_policy: { specific: { versions: [ 1 ] } }", "version_policy",
         VersionPolicy(specific=(1,))),
        ("response_cache { enable: true }", "cache", Cache()),
        ("response_cache { enable: false }", "cache", None),
        ('parameters { key: "intra_op_thread_count" value: { string_value: "1" } }', "threads", 1),
        ('parameters [ { key: "a" value { string_value: "b" } } ]', "parameters", {"a": "b"}),
        ("", "platform", "onnxruntime_onnx"),
    ],
)  # fmt: skip
def test_keys_become_settings(tmp_path, text, field, value):
    assert getattr(config_of(tmp_path, ONNX + text), field) == value


@pytest.mark.parametrize(
    ("text", "file", "platform"),
    [
        ("", "model.onnx", "onnxruntime_onnx"),
        ("", "model.pt", "pytorch_libtorch"),
        ('default_model_filename: "net.pt"', "net.pt", "pytorch_libtorch"),
        ('platform: "pytorch_libtorch"', "model.pt", "pytorch_libtorch"),
        ('backend: "openvino"', "model.xml", None),
    ],
)
def test_the_backend_or_the_file_decides(tmp_path, text, file, platform):
    config = config_of(tmp_path, text + TENSORS, file=file)
    assert (config.platform, config.model) == (platform, str(tmp_path / "m/1" / file))


def test_an_onnx_folder_with_external_data(tmp_path):
    folder = tmp_path / "m/1/model.onnx"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"")
    (tmp_path / "m/config.pbtxt").write_text(ONNX)
    entry = Repository([tmp_path], formats()).scan()["m"]
    assert entry.versions["1"].config.model == str(folder / "model.onnx")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sequence_batching { iterative_sequence: true }", "iterative_sequence: a request is run once"),
        ('sequence_batching { state { input_name: "b" output_name: "a" data_type: TYPE_FP32 dims: 1 '
         'initial_state { data_file: "zeros" } } }', "data_file: states begin as zeros"),
        ("batch_input { kind: BATCH_ITEM_SHAPE }", "batch_input:"),
        ('model_operations { op_library_filename: "x.so" }', "model_operations: libraries"),
        ("model_transaction_policy { decoupled: true }", "decoupled: one request has one answer"),
        ("instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]", "KIND_CPU, KIND_GPU"),
        ("instance_group { count: 1024 gpus: [0, 1] }", "2048 instances"),
        ("instance_group [ { gpus: [ 0 ] }, { count: 1 } ]", "gpus: of several groups"),
        ("instance_group { passive: true }", "passive: every instance"),
        ('parameters { key: "CPU_EXTENSION_PATH" value { string_value: "x.so" } }', "custom"),
        ('input { name: "z" data_type: TYPE_FP32 dims: 1 optional: true }', "input.optional"),
        ('runtime: "model.py"', "runtime"),
        ('output { name: "a" data_type: TYPE_FP32 dims: 1 label_filename: "a.txt" }'
         'output { name: "b" data_type: TYPE_FP32 dims: 1 label_filename: "b.txt" }', "labels"),
    ],
)  # fmt: skip
def test_what_would_give_other_answers_is_refused_by_name(tmp_path, text, said):
    entry = entry_of(tmp_path, ONNX + text)
    assert not entry.versions
    assert entry.error.startswith(f"{tmp_path}/m/config.pbtxt asks for what ksrv does not do: ")
    assert said in entry.error


def test_a_python_model_reshapes_by_itself(tmp_path):
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } } '
        'output { name: "y" data_type: TYPE_FP32 dims: 2 }'
    )
    assert "input.reshape" in entry_of(tmp_path, f'backend: "python" {tensors}').error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "dali"', "'dali' is not served; ksrv serves onnxruntime, openvino, python"),
        ('backend: "tensorrt"', "'tensorrt' is not served; ksrv serves onnxruntime"),
        ('platform: "tensorflow_savedmodel"', "'tensorflow_savedmodel' is not served"),
    ],
)
def test_other_backends_are_refused_by_name(tmp_path, text, said):
    assert said in entry_of(tmp_path, text + TENSORS).error


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("nonsense: 1", 5, 'has no field named "nonsense". Known here are backend'),
        ("dynamic_baching { }", 5, "did you mean dynamic_batching?"),
        ("dynamic_batching { delay: 1 }", 5, 'has no field named "delay"'),
        ("max_batch_size: 4", 2, 'should not have multiple "max_batch_size" fields'),
        ('version_policy { latest { num_versions: 0 } }', 5, "expected a whole number from 1"),
        ("version_policy { latest {} all {} }", 5, '"all" is specified along with field "latest"'),
        ("version_policy { specific { versions: 9 } }", 5, "names the versions 9"),
        ("instance_group { kind: KIND_TPU }", 5, "no value named KIND_TPU. (did you mean KIND_GPU?)"),
        ("instance_group { count: 1025 }", 5, "expected a whole number from 1 to 1024"),
        ("name: other", 5, "Expected string but found: 'other'"),
        ('name: "other"', 5, "name: is 'other', and the folder is called 'm'"),
        ('platform: "pytorch_libtorch"', 1, "backend: is 'onnxruntime'"),
        ("ensemble_scheduling { step { model_name: 'a' } }", 5, "of no use to the backend"),
        ('input { name: "x" data_type: TYPE_FP32 dims: 1 }', 5, "'x' is declared twice"),
        ('input { name: "z" data_type: TYPE_FLOAT dims: 1 }', 5, "no value named TYPE_FLOAT"),
        ('input { name: "z" data_type: TYPE_FP32 dims: 0 }', 5, "a size is -1 or more than 0"),
        ('input { name: "z" data_type: TYPE_FP32 dims: -2 }', 5, "expected a whole number from -1"),
        ('input { name: "" data_type: TYPE_FP32 dims: 1 }', 5, "input[1].name"),
        ('input { data_type: TYPE_FP32 dims: 1 }', 5, "this section needs a name"),
        ('input { name: "z" data_type: TYPE_FP32 dims: 6 reshape { shape: [2, 2] } }', 5,
         "[2, 2] does not hold as many values as the dims [6]"),
        ('input { name: "z" data_type: TYPE_FP32 dims: [-1, 4] reshape { shape: [4, -1] } }', 5,
         "does not hold as many values"),
        ('parameters { key: "a" } parameters { key: "a" }', 5, "'a' is written twice"),
        ('parameters { key: "intra_op_thread_count" value { string_value: "-1" } }', 5,
         "expected a whole number from 0 to 4096"),
        ("dynamic_batching { max_queue_delay_microseconds: 9999999999999 }", 5, "more than an hour"),
        ("{", 5, "Expected identifier or number, got {"),
        ("[ext.name]: 1", 5, "does not have extensions"),
        ("max_batch_size: " + "9" * 5000, 5, "9999"),
        ("optimization { " * 100, 5, 'no field named "optimization"'),
        ("input { dims: [" + "1," * 60000 + "1] }", 1, "more than 50000 values"),
        ('name: "\\xff"', 5, "utf-8"),
        ('name: "\\ud800"', 5, "ud800"),
    ],
)  # fmt: skip
def test_mistakes_have_file_line_and_key(tmp_path, text, line, said):
    config = 'backend: "onnxruntime"\nmax_batch_size: 8' + TENSORS + text
    entry = entry_of(tmp_path, config)
    assert not entry.versions
    if text == "max_batch_size: 4" or "platform" in text:
        assert entry.error.startswith(f"{tmp_path}/m/config.pbtxt, line ")
    else:
        assert re.match(rf"{tmp_path}/m/config.pbtxt, line {line}(, column \d+)?: ", entry.error)
    assert said in entry.error


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\xff\xfe\x00\x01" * 8, "not UTF-8 text"),
        (b'name: "m"\n' + b"#" * 1_100_000, "longer than 1048576 bytes"),
        (b"\x7fELF\x02\x01\x01", r"got \x7f"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path, raw, said):
    assert said in entry_of(tmp_path, "", raw=raw).error


@pytest.mark.parametrize(
    "name", ["../../secret.onnx", "/etc/passwd", "..", "a/../../x.onnx", "\\000.onnx"]
)
@pytest.mark.parametrize("key", ["default_model_filename", "label_filename"])
def test_files_outside_of_the_folder_are_refused(tmp_path, key, name):
    (tmp_path / "secret.onnx").write_bytes(b"")
    if key == "label_filename":
        text = ONNX + f'output {{ name: "z" data_type: TYPE_FP32 dims: 1 {key}: "{name}" }}'
    else:
        text = ONNX + f'{key}: "{name}"'
    entry = entry_of(tmp_path, text)
    errors = [entry.error] if entry.error else [one.error for one in entry.versions.values()]
    assert "leaves the model's folder" in errors[0]


def test_links_out_of_the_folder_are_refused(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.onnx").write_bytes(b"")
    (outside / "labels.txt").write_text("secret\n")
    store = tmp_path / "store"
    (store / "m/1").mkdir(parents=True)
    os.symlink(outside / "model.onnx", store / "m/1/model.onnx")
    (store / "m/config.pbtxt").write_text(ONNX)
    entry = Repository([store], formats()).scan()["m"]
    assert (
        "leads out of the model's folder; put what its link leads to in its place"
        in entry.versions["1"].error
    )
    os.symlink(outside / "labels.txt", store / "m/labels.txt")
    (store / "m/config.pbtxt").write_text(
        ONNX + 'output { name: "z" data_type: TYPE_FP32 dims: 1 label_filename: "labels.txt" }'
    )
    assert (
        "leads out of the model's folder; put what its link leads to in its place"
        in Repository([store], formats()).scan()["m"].error
    )


def test_a_missing_model_file_is_that_versions_error(tmp_path):
    (tmp_path / "m/2").mkdir(parents=True)
    entry = entry_of(tmp_path, ONNX + "version_policy { all {} }")
    assert entry.error is None
    assert entry.versions["1"].error is None
    assert "m/2/model.onnx is missing" in entry.versions["2"].error


def test_a_model_without_versions_says_so(tmp_path):
    assert "holds no version folder" in entry_of(tmp_path, ONNX, versions=()).error


def test_a_torchscript_model_needs_its_tensors(tmp_path):
    entry = entry_of(tmp_path, 'backend: "pytorch"', file="model.pt")
    assert "needs an input; only ONNX and OpenVINO files declare theirs" in entry.error


@pytest.mark.parametrize(
    ("names", "said"),
    [(("a__0", "b__2"), "end with [0, 2]; expected each place from 0 once"),
     (("a__1", "b__1"), "end with [1, 1]")],
)  # fmt: skip
def test_places_that_leave_gaps_are_refused(tmp_path, names, said):
    tensors = "".join(f'input {{ name: "{one}" data_type: TYPE_FP32 dims: 1 }}' for one in names)
    entry = entry_of(tmp_path, 'backend: "pytorch"' + tensors, file="model.pt")
    assert said in entry.error


def test_ignored_keys_are_in_the_log_once(tmp_path, caplog):
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(b"")
    (tmp_path / "m/config.pbtxt").write_text(ONNX + "optimization { priority: PRIORITY_MAX }")
    repository = Repository([tmp_path], formats())
    caplog.set_level("INFO", "ksrv.repository")
    for _ in range(2):
        assert repository.scan()["m"].error is None
    (warned,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "/m: optimization.priority: ignored, it changes speed alone" in warned
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "INFO"]
    assert "max_batch_size: batches of up to 8 rows" in told and "optimization" not in told


@pytest.mark.parametrize("own", ["model.yaml", "handler.py", "1/model.yaml", "1/handler.py"])
def test_a_folder_of_ksrvs_own_stays_one(tmp_path, own):
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(b"")
    (tmp_path / "m/config.pbtxt").write_text("nonsense")
    text = "model: model.onnx\n" if own.endswith("yaml") else "def inference(x): return x\n"
    (tmp_path / "m" / own).write_text(text)
    entry = Repository([tmp_path], formats()).scan()["m"]
    assert entry.error is None and entry.report is None


CONTROL = 'sequence_batching { control_input { name: "c" control { %s } } }'
STATE = (
    'sequence_batching { state { input_name: "s" output_name: "t" data_type: %s dims: [ 2, -1 ] } }'
)


def test_sequence_batching_becomes_sequences(tmp_path):
    text = "instance_group { count: 3 } sequence_batching { max_sequence_idle_microseconds: 1500 oldest {"
    text += " max_candidate_sequences: 1000 max_queue_delay_microseconds: 3000 preserve_ordering: true } "
    text += STATE.partition("{")[2] % "TYPE_FP16"
    entry = entry_of(tmp_path, ONNX + text)
    config = entry.versions["1"].config
    assert config.handler == "ksrv.dialects.triton.handlers.sequence_model:TritonSequenceModel"
    assert config.sequences == SequenceLimits(max=3000, idle_timeout_ms=2)
    assert (config.batching.max_batch_size, config.batching.max_delay_ms) == (8, 3)
    [state] = TritonDeclarations.of(config).states
    assert (state.datatype, state.shape, state.initial_shape) == ("FP16", (2, -1), (2, 1))
    assert "sequence_batching.oldest.preserve_ordering" in entry.report.ignored
    assert "answered 503, while Triton lets it wait" in entry.report.applied["sequence_batching"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sequence_batching { } dynamic_batching { }", 'another member of oneof "scheduling_choice"'),
        ("sequence_batching { direct { } oldest { } }", 'another member of oneof "strategy_choice"'),
        ("sequence_batching { slots: 3 }", 'no field named "slots"'),
        (CONTROL % "", "needs one of int32_false_true"),
        (CONTROL % "int32_false_true: [ 1 ]", "expected two values"),
        (CONTROL % "int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]", "needs one of"),
        (CONTROL % "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32", "FP32 is not a datatype"),
        (CONTROL % "bool_false_true: [ false, true ] } control { bool_false_true: [ false, true ]",
         "given twice"),
        ('sequence_batching { control_input { name: "c" } }', "one control of a kind"),
        (CONTROL.replace('"c"', '"x"') % "int32_false_true: [ 0, 1 ]", "'x' has another use"),
        (STATE.replace('"s"', '"x"') % "TYPE_FP32", "'x' has another use"),
        (STATE % "TYPE_STRING", "a state of texts"),
    ],
)  # fmt: skip
def test_a_sequence_batching_that_does_not_fit_is_an_error(tmp_path, text, said):
    assert said in entry_of(tmp_path, ONNX + text).error


def test_threads_are_bounded_by_the_cores(tmp_path):
    asked = 'parameters { key: "intra_op_thread_count" value { string_value: "4096" } }'
    entry = entry_of(tmp_path, ONNX + asked)
    cores = len(os.sched_getaffinity(0))
    assert entry.versions["1"].config.threads == cores
    said = entry.report.ignored["parameters.intra_op_thread_count"]
    assert said == f"4096 threads are more than the {cores} cores; an instance has {cores}"


def test_rules_name_fields_of_tritons_message():
    file = model_config_pb2.ModelConfig.DESCRIPTOR.file
    for message, keys in RULES.items():
        found = file.pool.FindMessageTypeByName(f"inference.{message}")
        assert keys.keys() <= set(found.fields_by_name.keys()), message
