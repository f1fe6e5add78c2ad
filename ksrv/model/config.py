"""The settings of a model (`ModelConfig`), and one version of it on disk with these settings (`ModelSource`).

`ksrv/repository/` makes them from model.yaml, or from the files of another server's format; the engine, the loaders and
the handlers read them. They have only values that JSON can carry, because a handler process gets its `ModelSource` as
JSON.

A field with a `Key` (`ksrv/model/spec.py`) is a key of model.yaml. Its description in the docstring is shown to users.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ksrv.model.postprocess import PostprocessStep
from ksrv.model.spec import LARGEST_SIZE, Key, ModelSpec, SequenceLimits, TensorSpec

ExecutorName: TypeAlias = Literal["inline", "process"]
Role: TypeAlias = Literal["embedding", "rerank"]
Precision: TypeAlias = Literal["highest", "high", "medium"]
BUILT_IN_HANDLERS = (
    "image_classifier", "image_segmenter", "object_detector", "text_classifier", "text_encoder",
)  # fmt: skip
CALLING_INSTANCES = 16
"""The default of `instances:` for a handler that calls other models."""


class JoinPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are joined to batches.

    Attributes:
        max_batch_size: The most rows of a batch.
        max_delay_ms: How long the oldest request waits for a full batch; 0 takes the queued requests.
        split: Split a request with more rows instead of refusing it.
    """

    max_batch_size: Annotated[int, Key(ge=1, le=1_000_000)]
    max_delay_ms: Annotated[float, Key(ge=0.0, le=3_600_000.0)] = 0.0
    split: Annotated[bool, Key()] = False


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that are given again to the same request; `{}` has all defaults.

    Attributes:
        entries: Answers that are kept.
        bytes: The most bytes of tensors in them.
        ttl_s: Seconds for which an answer is given again.
    """

    entries: Annotated[int, Key(ge=1, le=10_000_000)] = 1000
    bytes: Annotated[int, Key(ge=1, le=2**40)] = 64 << 20
    ttl_s: Annotated[float, Key(ge=0.001, le=31_536_000.0)] = 60.0


class OnnxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How ONNX Runtime runs a .onnx file.

    Attributes:
        providers: Names of execution providers, the preferred one first; without names the device chooses.
        provider_options: For each provider {OPTION: VALUE}.
        session: Attributes of onnxruntime.SessionOptions; names with a dot are config entries.
    """

    providers: Annotated[tuple[str, ...], Key(written=list[str], expected="a list of names")] = ()
    provider_options: Annotated[
        dict[str, dict[str, Any]],
        Key(
            written=dict[str, dict[str, str | int | float | bool]],
            expected="{NAME: {OPTION: VALUE}} for providers",
        ),
    ] = {}
    session: Annotated[
        dict[str, Any],
        Key(written=dict[str, str | int | float | bool], expected="names and values"),
    ] = {}


class OpenVinoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How OpenVINO runs a model file.

    Attributes:
        properties: Properties of the CPU plugin, such as INFERENCE_PRECISION_HINT: bf16.
    """

    properties: Annotated[
        dict[str, Any],
        Key(written=dict[str, str | int | float], expected="properties and their values"),
    ] = {}


class StateTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An output of the model file that is an input of the next request of the same sequence.

    Attributes:
        input: The name of the input in the file.
        output: The name of the output in the file.
        batch_dimension: The dimension that counts the rows.
        initial_shape: The shape of the zeros that the first request gets, without the batch dimension; by default the
            shape in the file, with 1 for each free size.
        datatype: The datatype; "" for the datatype in the file.
    """

    input: Annotated[str, Key(min_length=1)]
    output: Annotated[str, Key(min_length=1)]
    batch_dimension: Annotated[int, Key(ge=0, le=63)] = 0
    initial_shape: Annotated[
        tuple[int, ...] | None,
        Key(written=list[Annotated[int, Meta(ge=0, le=LARGEST_SIZE)]], expected="a list of sizes"),
    ] = None
    datatype: str = ""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled requests and their answers, written to files: `{to: /var/lib/ksrv/records}` has the other defaults.

    Attributes:
        to: Folder for the files, as an absolute path.
        sample: Share of the requests.
        format: One record of JSON on each line.
        images: Write encoded images of inputs too.
        without: Headers that are left out, besides headers with credentials.
        size: Bytes after which a file is full.
        count: Files that are kept.
    """

    to: Annotated[str, Key(min_length=1)]
    sample: Annotated[float, Key(ge=0.0, le=1.0)] = 0.01
    format: Annotated[Literal["jsonl"], Key()] = "jsonl"
    images: Annotated[bool, Key()] = True
    without: Annotated[
        tuple[str, ...],
        Key(written=list[Annotated[str, Meta(min_length=1)]], expected="a list of names"),
    ] = ()
    size: Annotated[int, Key(ge=4096, le=2**40)] = 64 << 20
    count: Annotated[int, Key(ge=1, le=100_000)] = 10


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """Another version that runs a sample of the requests, too, so that its answers can be compared.

    Attributes:
        version: Number of the version, which gets no requests that name no version.
        share: Largest share of the requests, and of the time, that the version runs.
        tolerance: Largest relative difference between floats that agree (absolute near 0).
    """

    version: Annotated[int, Key(ge=0, le=10**18 - 1)]
    share: Annotated[float, Key(ge=0.0, le=1.0)] = 0.1
    tolerance: Annotated[float, Key(ge=0.0, le=1e9)] = 1e-5


class VersionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which versions are served, by number; one of the two keys.

    Attributes:
        latest: How many of the highest versions; 0 for all of them.
        specific: If not empty, these numbers and no others.
        shadow: The version that is served besides, by the key `shadow`; None without.
    """

    latest: Annotated[int, Key(ge=1, le=1_000_000)] = 1
    specific: Annotated[
        tuple[int, ...],
        Key(
            written=list[Annotated[int, Meta(ge=0, lt=10**18)]],
            expected="a list of versions, {specific: [N, ...]}",
            min_length=1,
        ),
    ] = ()
    shadow: Shadow | None = None


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one version of a model.

    They are checked, every path is absolute, and every default is filled in. The fields without a `Key`, from `runner`
    on, are not keys of model.yaml: the reader of the format sets them.

    Attributes:
        handler: FILE.py[:NAME], package.module:NAME, or image_classifier, image_segmenter, object_detector,
            text_classifier, text_encoder.
        model: A .pt, .pth, .safetensors, .pt2, .so, .onnx or .xml file.
        model_class: FILE.py:NAME of the torch module that a state_dict fills.
        rename: Names of inputs and outputs of the model file, and the names that clients see instead.
        constants: Inputs of the model file, and the value that each gets in every run.
        state: Outputs of the model file that are inputs of the next request of the same sequence.
        postprocess: Steps that make the outputs of what the model returns.
        labels: A JSON object or list, or a text with one label a line.
        batching: off: requests have no rows, and shapes are whole.
        role: The OpenAI route that the model serves: /v1/embeddings, or /v1/rerank.
        executor: process: a separate process for each instance.
        retry: Try a batch whose process died once more.
        needs: The models that the handler calls. The model is ready when they are, and has 16 instances by default.
        instances: Handlers side by side.
        threads: CPU threads of an instance; 0 shares the cores out.
        timeout_ms: From a request's arrival to its answer.
        run_timeout_ms: executor: process, for one batch; 0: as long as its requests may take.
        start_timeout_s: executor: process, until it is ready.
        queue_size: How many requests may wait.
        rate_limit: Requests a second; 0 for any number.
        max_concurrency: Requests at a time; 0 for any number.
        concurrent_batches: Batches an instance runs at a time, if its handler has coroutines.
        cache: Give the same request the same answer.
        record: Write a sample of the requests and their answers to files.
        shadow: Compare the answers of another version with the answers that clients get.
        sequences: Serve sequences of requests, each with a state.
        parameters: The handler's context.parameters.
        pt2: {compile: {enable, backend, mode, dynamic, fullgraph, options}, required}.
        device: The device of the model; tensorrt and openvino are for .onnx files.
        onnx: The execution providers and session options of ONNX Runtime.
        openvino: The properties of OpenVINO.
        envelope: How bodies of requests wrap the rows, for handlers whose server has envelopes.
        env: Environment variables of the handler's process.
        python: executor: process, its interpreter, or the folder of its environment.
        trust: pickle: the model file may run code when it is loaded, in the handler's process.
        cuda_graphs: Record the launches of a torch model on CUDA and replay them.
        matmul_precision: torch.set_float32_matmul_precision, for the whole process.
        runner: `package.module:NAME` of the class that drives the handler.
        own_version: The version that the files name themselves; "" leaves it to the folder's name.
        runtime: The module that loads the model file whatever its suffix; "" chooses by the suffix.
        dialect: Further settings of the format in which the model is written, as JSON values, by
            the format's name; only the format's code reads them.
        platform: The platform that metadata shows, or None for the loader's platform.
        row_limit: The most rows of a request, whatever a batch may have; 0 for the limit of a batch.
        counts_rows: Whether an open first dimension counts the rows of a request; else shapes are whole.
        configuration: The answer of the configuration call, if the model's format has a special form.
        given: The keys that were read from model.yaml or the handler's `@settings`.
        served_outputs: The outputs of the model file that `outputs:` lists by name alone, as clients see the names.
        answered: The outputs that `outputs:` lists by name alone beside `postprocess`.
    """

    handler: Annotated[str | None, Key(min_length=1)] = None
    model: Annotated[str | None, Key(min_length=1)] = None
    model_class: Annotated[str | None, Key(name="class", min_length=1)] = None
    device: Annotated[
        str,
        Key(
            shared=True,
            pattern="^(auto|cpu|mps|xla|openvino|(cuda|xpu|tensorrt)(:[0-9]{1,4}(,[0-9]{1,4}){0,63})?)$",
            expected="auto, cpu, cuda, cuda:N, cuda:N,M, tensorrt, openvino, mps, xpu or xla",
        ),
    ] = "auto"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    rename: Annotated[
        dict[str, str],
        Key(written=dict[str, Annotated[str, Meta(min_length=1)]], expected="names and new names"),
    ] = {}
    constants: Annotated[
        dict[str, Any],
        Key(
            written=dict[str, bool | int | float | str | list[Any]],
            expected="names and their values, each a number, true, false, a text or a list",
        ),
    ] = {}
    state: Annotated[tuple[StateTensor, ...], Key()] = ()
    postprocess: Annotated[tuple[PostprocessStep, ...], Key()] = ()
    labels: Annotated[tuple[str, ...] | None, Key(written=str, min_length=1)] = None
    batching: Annotated[
        JoinPolicy | None,
        Key(
            shared=True,
            # YAML takes a bare `off` for false.
            written=JoinPolicy
            | Literal["off"]
            | Annotated[bool, Meta(extra_json_schema={"enum": [False]})],
            expected="off, or keys and values such as {max_batch_size: 8}",
        ),
    ] = None
    role: Annotated[Role | None, Key()] = None
    executor: Annotated[ExecutorName, Key()] = "inline"
    retry: Annotated[bool, Key(shared=True)] = True
    needs: Annotated[
        tuple[tuple[str, str], ...],
        Key(
            name="calls",
            written=list[Annotated[str, Meta(min_length=1)]],
            expected="a list of names of models",
            min_length=1,
        ),
    ] = ()  # names and versions; "" is the highest version
    instances: Annotated[int, Key(shared=True, ge=1, le=1024)] = 1
    threads: Annotated[int, Key(shared=True, ge=0, le=4096)] = 0
    timeout_ms: Annotated[int, Key(shared=True, ge=1, le=LARGEST_SIZE)] = 30_000
    run_timeout_ms: Annotated[int, Key(shared=True, ge=0, le=LARGEST_SIZE)] = 0
    start_timeout_s: Annotated[
        float, Key(name="start_timeout_ms", written=int, shared=True, ge=1, le=LARGEST_SIZE)
    ] = 120.0
    queue_size: Annotated[int, Key(shared=True, ge=1, le=1_000_000)] = 100
    rate_limit: Annotated[float, Key(shared=True, ge=0.0, le=1_000_000_000.0)] = 0.0
    max_concurrency: Annotated[int, Key(shared=True, ge=0, le=1_000_000)] = 0
    concurrent_batches: Annotated[int, Key(ge=1, le=65_536)] = 64
    cache: Annotated[Cache | None, Key()] = None
    record: Annotated[Recording | None, Key()] = None
    shadow: Annotated[Shadow | None, Key()] = None
    sequences: Annotated[SequenceLimits | None, Key()] = None
    warmup: Annotated[
        bool | tuple[str, ...],
        Key(
            written=bool | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)],
            expected="true, false or a list of sample files",
        ),
    ] = True
    version_policy: Annotated[
        VersionPolicy,
        Key(
            written=Literal["all"] | VersionPolicy,
            expected="all, {latest: N} or {specific: [N, ...]}",
        ),
    ] = VersionPolicy()
    parameters: Annotated[dict[str, Any], Key(written=dict[Any, Any])] = {}
    pt2: Annotated[
        dict[str, Any] | str | None, Key(written=dict[Any, Any] | str, expected="keys and values")
    ] = None
    onnx: Annotated[OnnxSettings, Key()] = OnnxSettings()
    openvino: Annotated[OpenVinoSettings, Key()] = OpenVinoSettings()
    envelope: Annotated[str | None, Key(shared=True, min_length=1)] = None
    env: Annotated[
        dict[str, str],
        Key(shared=True, written=dict[Any, Any], expected="variables and their values"),
    ] = {}
    python: Annotated[str, Key(shared=True, min_length=1)] = ""
    trust: Annotated[Literal["pickle"] | None, Key()] = None
    cuda_graphs: Annotated[bool, Key()] = False
    matmul_precision: Annotated[Precision | None, Key()] = None
    runner: str = "ksrv.handlers.runner:Runner"
    own_version: str = ""
    runtime: str = ""
    dialect: dict[str, Any] = {}
    platform: str | None = None
    row_limit: int = 0
    counts_rows: bool = True
    configuration: dict[str, Any] | None = None
    given: tuple[str, ...] = ()
    served_outputs: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()

    def spec(self, name: str, version: str = "") -> ModelSpec:
        """Return the spec that the settings give; the loader adds the declarations of the model file.

        Args:
            version: The version folder's name, or "".
        """
        return ModelSpec(
            name=name,
            version=version,
            inputs=self.inputs,
            outputs=self.outputs,
            labels=self.labels,
            max_batch_size=self.batching.max_batch_size if self.batching else 0,
            row_limit=self.row_limit,
            counts_rows=self.counts_rows,
            parameters=self.parameters,
            sequences=self.sequences,
            configuration=self.configuration,
            role=self.role or "",
        )


class FileMark(msgspec.Struct, frozen=True, array_like=True):
    """The state of one file of a model when it was read; another state means that the file has changed.

    Attributes:
        size: In bytes.
        mtime_ns: The time of the last change in nanoseconds.
        digest: The digest of the content of a small file; "" for a large file, such as weights.
    """

    path: str
    size: int
    mtime_ns: int
    digest: str = ""


def content_digest(content: bytes) -> str:
    """Return the digest of a file's content, as `FileMark` has it."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class LoadedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one version as they were read for a load. If a process ends, the new process loads the same files.

    Attributes:
        marks: Every file.
        sources: The content of the Python files and of model.yaml, by path.
        notes: The folder in which the server notes which of these files the model's code writes; "" for none.
    """

    marks: tuple[FileMark, ...] = ()
    sources: dict[str, bytes] = {}
    notes: str = ""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model on disk.

    Attributes:
        name: The model's name.
        version: The version folder's name, or "" for an unversioned model.
        folder: The version's folder, or the model's if it has no versions.
        root: The model's folder, which has `model.yaml` in it and may have shared files.
        config: The settings, or None if they could not be read.
        error: Why the version cannot be served, or None.
        first_device: The index of the first instance's device, if there are several devices; the next instances take
            the next devices.
        debug: Whether errors include the end of the traceback, and requests may ask for a profile.
        files: Every file of the version; empty if these are all files of the folders.
        alone: Whether it is the only model of the process that loads it.
        loaded: The files to load; None to load from the disk.
        again: Whether these files were loaded before, in a process that has ended.
    """

    name: str
    version: str
    folder: Path
    root: Path
    config: ModelConfig | None = None
    error: str | None = None
    files: tuple[str, ...] = ()
    debug: bool = False
    first_device: int = 0
    alone: bool = False
    loaded: LoadedFiles | None = None
    again: bool = False

    def to_json(self) -> bytes:
        """Return the source as JSON, for a separate process."""
        return msgspec.json.encode(self, enc_hook=str)

    @staticmethod
    def from_json(text: bytes) -> "ModelSource":
        """Return the source that `to_json` wrote."""
        return msgspec.json.decode(text, type=ModelSource, dec_hook=path_of)


def path_of(wanted: type, value: Any) -> Any:
    """Return the path for a text: the `dec_hook` of msgspec for types that contain a `ModelSource`."""
    if wanted is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"a {wanted.__name__} has no JSON form here")
