"""The source of a model: the settings of its `model.yaml` and the places of its files.

The repository writes these nouns; handlers, executors and the engine read them. They hold plain
values only, so that a handler's process receives its model as JSON.
"""

import hashlib
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from ksrv.spec import ModelSpec, SequenceLimits, TensorSpec

ExecutorName: TypeAlias = Literal["inline", "process"]
Role: TypeAlias = Literal["embedding", "rerank"]
Precision: TypeAlias = Literal["highest", "high", "medium"]


class Batching(msgspec.Struct, frozen=True, kw_only=True):
    """The `batching:` section.

    Attributes:
        max_batch_size: Rows that one batch may hold.
        max_delay_ms: How long the oldest request waits for a full batch; 0 takes the queued requests.
        split: Whether a request with more rows is split, rather than refused.
    """

    max_batch_size: int
    max_delay_ms: float = 0.0
    split: bool = False


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """The `cache:` section: answers that are given again.

    Attributes:
        entries: Answers that are kept.
        bytes: Bytes of tensors that they may hold.
        ttl_s: Seconds for which an answer is given again.
    """

    entries: int = 1000
    bytes: int = 64 << 20
    ttl_s: float = 60.0


class VersionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which of a model's version folders are served.

    Attributes:
        latest: How many of the highest numbers; 0 for all of them.
        specific: These numbers and no others, where it is not empty.
    """

    latest: int = 1
    specific: tuple[int, ...] = ()


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One model version's settings, checked, with every path absolute and every default filled in.

    Attributes:
        handler: `FILE.py[:NAME]`, `package.module:NAME`, a built-in's name, or None.
        model: The model file, or None for a handler that needs none.
        model_class: `FILE.py:NAME` or `package.module:NAME` of the module that a state_dict fills.
        device: "auto", "cpu", "cuda", "cuda:N", "mps", "xpu" or "xla"; "cuda:N,M" for instances in turn.
        inputs: The declared inputs; empty leaves them to the model file.
        outputs: The declared outputs; empty leaves them to the model file.
        labels: Class labels by index.
        batching: None where requests are never joined.
        executor: Where the handler runs.
        retry: Whether a batch whose handler process died is tried once more.
        instances: How many handlers of the model run side by side.
        threads: CPU threads of one instance; 0 shares the cores among the instances.
        timeout_ms: How long a request may take, counted from its arrival; 0 for as long as it needs.
        run_timeout_ms: How long a handler may take for one batch, counted from its start; 0 for as
            long as its requests may take. A batch that takes longer ends the handler's process.
        start_timeout_s: How long a handler's process may take to get ready.
        queue_size: How many requests may wait.
        rate_limit: How many requests may come in a second; 0 for any number.
        max_concurrency: How many requests may be under way; 0 for any number.
        concurrent_batches: Batches that an instance runs at a time, where its handler has coroutines.
        cache: Which answers are given again; None where every request is run.
        sequences: The bounds of the sequences that requests belong to; None where they stand alone.
        warmup: Whether to warm up with generated data, or the sample files to do it with.
        version_policy: Which version folders are served.
        parameters: The handler's `context.parameters`.
        pt2: The `pt2:` section as it was written; `ksrv.compile_plan` reads it.
        envelope: How the bodies of requests wrap the rows for a handler whose format has envelopes, or None.
        env: Environment variables of the handler's process.
        python: The interpreter of the handler's process, the folder of its environment, or an archive of one,
            relative to the model's folder; "" for the server's.
        requirements: The requirements file whose packages the handler's process has; "" for the interpreter's.
        cuda_graphs: Whether launches of a torch model on CUDA are recorded and replayed.
        matmul_precision: `torch.set_float32_matmul_precision`, or None to leave it alone.
        runner: `package.module:NAME` of the class that drives the handler.
        own_version: The version that the files name themselves; "" leaves it to the folder's name.
        runtime: The name of the loader that reads the model file whatever its suffix; "" goes by the suffix.
        dialect: What the format that the model is written in says beside these settings, in values that JSON has, by
            the format's name; no code reads it but the format's own.
        platform: The platform that metadata shows, or None for the loader's own.
        row_limit: Rows that a request may have, whatever a batch may have; 0 for those of a batch.
        counts_rows: Whether an open first dimension counts the rows of a request; else shapes are whole.
        configuration: What the configuration call answers with, where the model's format has a form of its own.
        role: What OpenAI's routes ask it for, or None.
        given: The keys that model.yaml or the handler's `@settings` name, as far as they were read.
    """

    handler: str | None = None
    model: str | None = None
    model_class: str | None = None
    device: str = "auto"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    labels: tuple[str, ...] | None = None
    batching: Batching | None = None
    executor: ExecutorName = "inline"
    retry: bool = True
    instances: int = 1
    threads: int = 0
    timeout_ms: int = 30_000
    run_timeout_ms: int = 0
    start_timeout_s: float = 120.0
    queue_size: int = 100
    rate_limit: float = 0.0
    max_concurrency: int = 0
    concurrent_batches: int = 64
    cache: Cache | None = None
    sequences: SequenceLimits | None = None
    warmup: bool | tuple[str, ...] = True
    version_policy: VersionPolicy = VersionPolicy()
    parameters: dict[str, Any] = {}
    pt2: dict[str, Any] | str | None = None
    envelope: str | None = None
    env: dict[str, str] = {}
    python: str = ""
    requirements: str = ""
    cuda_graphs: bool = False
    matmul_precision: Precision | None = None
    runner: str = "ksrv.handlers.runner:Runner"
    own_version: str = ""
    runtime: str = ""
    dialect: dict[str, Any] = {}
    platform: str | None = None
    row_limit: int = 0
    counts_rows: bool = True
    configuration: dict[str, Any] | None = None
    role: Role | None = None
    given: tuple[str, ...] = ()

    def spec(self, name: str, version: str = "") -> ModelSpec:
        """Return the spec by the settings alone; the loader completes it.

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
    """One file of a model as it was when it was read.

    Attributes:
        size: In bytes.
        mtime_ns: The time of the last change in nanoseconds.
        digest: Of the content, where the file is small; else "".
    """

    path: str
    size: int
    mtime_ns: int
    digest: str = ""


def content_digest(content: bytes) -> str:
    """Return the digest of a file's content, as `FileMark` has it."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class LoadedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one version as they were read for a load; what replaces a process that ended loads the same.

    Attributes:
        marks: Every file.
        sources: The content of the Python files and of model.yaml, by path.
        notes: The folder that the server notes in which of these files the model's own code writes; "" for none.
    """

    marks: tuple[FileMark, ...] = ()
    sources: dict[str, bytes] = {}
    notes: str = ""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model on disk.

    Attributes:
        name: The model's name.
        version: The version folder's name, or "" for an unversioned model.
        folder: The version's folder, or the model's where it has no versions.
        root: The model's own folder, which holds `model.yaml` and may hold shared files.
        config: Its settings, or None where they could not be read.
        error: Why it cannot be served, or None.
        first_device: The number that the instances count their devices from, where several are there.
        debug: Whether errors hold the end of the traceback, and requests may ask for a profile.
        files: Every file of the version, where they are not the files of its folders; else empty.
        alone: Whether it is the only model of the process that loads it.
        loaded: The files to load; None for what lies on the disk.
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
        """Return the source as JSON, for a process of its own."""
        return msgspec.json.encode(self, enc_hook=str)

    @staticmethod
    def from_json(text: bytes) -> "ModelSource":
        """Return the source that `to_json` wrote."""
        return msgspec.json.decode(text, type=ModelSource, dec_hook=_path_from_json)


def _path_from_json(wanted: type, value: Any) -> Any:
    if wanted is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"a {wanted.__name__} has no JSON form here")
