"""Models of Triton with `sequence_batching`: control inputs and states, as tritonclient sends sequences."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.model_files.onnx_models import write_graph
from tests.support.model_files.triton_repository import write_folder

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: 2 }
output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
STATE = """
  state {
    input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: 2
    initial_state { data_type: TYPE_FP32 dims: 2 zero_data: true name: "zeros" }
  }
"""
CONTROLS = """
  control_input { name: "start"
    control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "ready"
    control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 5 ] } }
  control_input { name: "end"
    control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } }
  control_input { name: "id"
    control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


def write_sums(path, rows="N"):
    """y = before + x = after: implicit state."""
    shape = (rows, 2) if rows else (2,)
    write_graph(
        path,
        [("Add", ["x", "before"], ["after"], {}), ("Identity", ["after"], ["y"], {})],
        {"x": ("FP32", shape), "before": ("FP32", shape)},
        {"y": ("FP32", shape), "after": ("FP32", shape)},
    )


def write_controlled(path):
    """y = [start * 100 + ready * 10 + end, id]: control inputs, passed through."""
    column = ("N", 1)
    write_graph(
        path,
        [
            ("Cast", ["start"], ["s"], {"to": 1}),
            ("Cast", ["end"], ["e"], {"to": 1}),
            ("Cast", ["id"], ["i"], {"to": 1}),
            ("Mul", ["s", "hundred"], ["s100"], {}),
            ("Mul", ["ready", "ten"], ["r10"], {}),
            ("Add", ["s100", "r10"], ["sr"], {}),
            ("Add", ["sr", "e"], ["sre"], {}),
            ("Concat", ["sre", "i"], ["told"], {"axis": 1}),
            ("Mul", ["x", "zero"], ["nothing"], {}),
            ("Add", ["told", "nothing"], ["y"], {}),
        ],
        {
            "x": ("FP32", ("N", 2)),
            "start": ("INT32", column),
            "ready": ("FP32", column),
            "end": ("BOOL", column),
            "id": ("UINT64", column),
        },
        {"y": ("FP32", ("N", 2))},
        {"hundred": np.float32(100), "ten": np.float32(10), "zero": np.float32(0)},
    )


def write_grows(path):
    """A state that grows by a value with each request; y is its length."""
    write_graph(
        path,
        [
            ("Slice", ["x", "from", "to", "axes"], ["one"], {}),
            ("Concat", ["before", "one"], ["after"], {"axis": 1}),
            ("ReduceSum", ["after", "axes"], ["sum"], {"keepdims": 1}),
            ("Mul", ["x", "zero"], ["nothing"], {}),
            ("Add", ["sum", "nothing"], ["y"], {}),
        ],
        {"x": ("FP32", ("N", 2)), "before": ("FP32", ("N", "K"))},
        {"y": ("FP32", ("N", 2)), "after": ("FP32", ("N", "L"))},
        {
            "from": np.int64([0]),
            "to": np.int64([1]),
            "axes": np.int64([1]),
            "zero": np.float32(0),
        },
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("triton")
    onnx = 'backend: "onnxruntime"\n'
    ways = {
        "direct": "direct { max_queue_delay_microseconds: 2000 }" + STATE,
        "oldest": "oldest { max_candidate_sequences: 4 }" + STATE,
        "short": "max_sequence_idle_microseconds: 200000" + STATE,
    }
    for name, way in ways.items():
        text = f"{onnx}max_batch_size: 4\n{TENSORS}sequence_batching {{ {way} }}"
        write_sums(write_folder(root, name, text) / "1/model.onnx")
    text = f"{onnx}max_batch_size: 4\nsequence_batching {{ {STATE} }}"
    write_sums(write_folder(root, "left_to_the_file", text) / "1/model.onnx")
    text = f"{onnx}max_batch_size: 0\n{TENSORS}sequence_batching {{ {STATE} }}"
    write_sums(write_folder(root, "alone", text) / "1/model.onnx", rows=None)
    text = f"{onnx}max_batch_size: 4\n{TENSORS}sequence_batching {{ {CONTROLS} }}"
    write_controlled(write_folder(root, "controlled", text) / "1/model.onnx")
    text = f"""{onnx}max_batch_size: 4 input {{ name: "x" data_type: TYPE_FP32 dims: 2 }}
      output {{ name: "y" data_type: TYPE_FP32 dims: 1 }} sequence_batching {{ control_input {{
      name: "id" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING }} }} }}"""
    write_graph(
        write_folder(root, "numbered", text) / "1/model.onnx",
        [
            ("Cast", ["id"], ["number"], {"to": 1}),
            ("ReduceSum", ["x", "axes"], ["sum"], {}),
            ("Add", ["sum", "number"], ["y"], {}),
        ],
        {"x": ("FP32", ("N", 2)), "id": ("BYTES", ("N", 1))},
        {"y": ("FP32", ("N", 1))},
        {"axes": np.int64([1])},
    )
    grows = STATE.replace("dims: 2", "dims: -1")
    text = f"{onnx}max_batch_size: 4\n{TENSORS}sequence_batching {{ direct {{}} {grows} }}"
    write_grows(write_folder(root, "grows", text) / "1/model.onnx")
    text = f"""platform: "ensemble" max_batch_size: 4 {TENSORS} ensemble_scheduling {{
      step {{ model_name: "direct" input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "m" }} }}
      step {{ model_name: "oldest" input_map {{ key: "x" value: "m" }} output_map {{ key: "y" value: "y" }} }}
    }}"""
    write_folder(root, "both", text)
    with Server(root) as made:
        yield made


def ask(server, model, value, number, *, start=False, end=False, batched=True, http=False):
    kind = triton_http if http else triton_grpc
    shape = [1, 2] if batched else [2]
    given = kind.InferInput("x", shape, "FP32")
    given.set_data_from_numpy(np.full(shape, value, np.float32))
    with kind.InferenceServerClient(server.http if http else server.grpc) as client:
        found = client.infer(
            model, [given], sequence_id=number, sequence_start=start, sequence_end=end
        )
    return found.as_numpy("y").ravel().tolist()


@pytest.mark.parametrize("http", [True, False])
@pytest.mark.parametrize("model", ["direct", "oldest", "left_to_the_file"])
def test_a_state_goes_from_request_to_request(server, model, http):
    first, second = (70, 71) if http else (80, 81)
    assert ask(server, model, 1, first, start=True, http=http) == [1, 1]
    assert ask(server, model, 10, second, start=True, http=http) == [10, 10]
    assert ask(server, model, 2, first, http=http) == [3, 3]
    assert ask(server, model, 20, second, end=True, http=http) == [30, 30]
    assert ask(server, model, 4, first, end=True, http=http) == [7, 7]
    assert ask(server, model, 5, first, start=True, end=True, http=http) == [5, 5]
    with pytest.raises(InferenceServerException, match="sequence"):
        ask(server, model, 5, first, http=http)


def test_a_model_without_a_batch_dimension(server):
    assert ask(server, "alone", 1, 5, start=True, batched=False) == [1, 1]
    assert ask(server, "alone", 2, 5, end=True, batched=False) == [3, 3]


def test_control_inputs_are_filled_in(server):
    assert ask(server, "controlled", 1, 2**40, start=True) == [150, 2**40]
    assert ask(server, "controlled", 1, 2**40) == [50, 2**40]
    assert ask(server, "controlled", 1, 2**40, end=True) == [51, 2**40]
    assert ask(server, "controlled", 1, 3, start=True, end=True) == [151, 3]
    with pytest.raises(InferenceServerException, match=r"UINT64.*'hall' is no such value"):
        ask(server, "controlled", 1, "hall", start=True)


def test_ids_that_a_model_makes_numbers_of(server):
    """Its warm-up has no sequence, and no number could be made of an empty text."""
    assert ask(server, "numbered", 1, "40", start=True) == [42]
    assert "numbered was not warmed up" not in server.log


def test_clients_see_neither_controls_nor_states(server):
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        for model in ("direct", "controlled", "left_to_the_file"):
            found = client.get_model_metadata(model)
            assert [one.name for one in found.inputs] == ["x"]
            assert [one.name for one in found.outputs] == ["y"]
        config = client.get_model_config("short").config
    assert config.sequence_batching.max_sequence_idle_microseconds == 200_000


def test_states_of_different_sizes_are_not_mixed_up(server):
    def go(number):
        sums = [ask(server, "grows", number, number, start=True)]
        sums += [ask(server, "grows", number, number) for _ in range(number)]
        return [one[0] for one in sums]

    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(go, range(1, 6)))
    assert found == [[n * (step + 1) for step in range(n + 1)] for n in range(1, 6)]


def test_a_request_of_a_sequence_has_one_row(server):
    given = triton_grpc.InferInput("x", [2, 2], "FP32")
    given.set_data_from_numpy(np.zeros((2, 2), np.float32))
    with (
        triton_grpc.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match="2 rows"),
    ):
        client.infer("direct", [given], sequence_id=9, sequence_start=True)


def test_an_ensemble_hands_its_sequence_to_its_steps(server):
    assert ask(server, "both", 1, 33, start=True) == [1, 1]
    assert ask(server, "both", 1, 33) == [3, 3]
    assert ask(server, "both", 1, 33, end=True) == [6, 6]
    with pytest.raises(InferenceServerException, match="sequence"):
        ask(server, "both", 1, 34)


OPENVINO = 'backend: "openvino"\n'
TORCH = 'backend: "pytorch"\n'


def write_openvino_sums(path):
    pytest.importorskip("openvino", reason="make test-openvino installs it")
    from tests.support.model_files.openvino_models import ops, parameter, write_ir

    x, before = parameter("x", [-1, 2]), parameter("before", [-1, 2])
    after = ops.add(x, before)
    write_ir(
        path.with_suffix(".xml"),
        [x, before],
        {"after": after, "y": ops.multiply(after, ops.constant(np.float32(1)))},
    )


def write_torch_sums(path):
    """The same by TorchScript: the state is an argument and a result."""
    torch = pytest.importorskip("torch")

    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, before: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x + before, "after": x + before}

    torch.jit.script(Sums().eval()).save(str(path.with_suffix(".pt")))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("backend", "write"), [(OPENVINO, write_openvino_sums), (TORCH, write_torch_sums)]
)
def test_states_of_other_backends(tmp_path, backend, write):
    text = f"{backend}max_batch_size: 4\n{TENSORS}sequence_batching {{ {STATE} }}"
    write(write_folder(tmp_path, "sums", text) / "1/model")
    with Server(tmp_path) as server:
        for number, value in ((1, 10), (2, 100)):
            assert ask(server, "sums", value, number, start=True) == [value, value]
        assert ask(server, "sums", 2, 1) == [12, 12]
        assert ask(server, "sums", 5, 2, end=True) == [105, 105]
        assert ask(server, "sums", 3, 1, end=True) == [15, 15]
