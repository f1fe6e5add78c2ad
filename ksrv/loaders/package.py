"""Loads `.pt2` packages: a `torch.export` program, or a model that AOTInductor compiled from such a program.

Both are zip files, and `kind_of` tells them apart by the names in the file. A program declares its inputs and outputs.
A compiled package has only their number and the names of keyword arguments.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ksrv._native.tensor.datatype import TENSOR_NAMES
from ksrv.loaders.arguments import PositionalCall
from ksrv.loaders.device import torch_device
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError, short, torch_file
from ksrv.loaders.torch_compiler import torch_compiler
from ksrv.loaders.torch_files import kind_of, refused
from ksrv.model.spec import Dimension, TensorSpec

DATATYPES = {f"torch.{shown}": name for name, shown in TENSOR_NAMES.items()}

LARGEST = 2**31 - 1
"""The upper bound of a dimension from which on the dimension counts as unbounded."""

MODEL = "model"
"""The name under which torch packages a program by default."""


def load(request: LoadRequest) -> LoadedModel:
    """Load a `.pt2` file.

    Returns:
        The program's module, or the compiled model.

    Raises:
        ModelLoadError: torch is missing, or the file is no such package.
    """
    path = torch_file(request, "a package")
    import torch

    kind = kind_of(path)
    if kind not in ("compiled", "exported"):
        raise refused(path, "torch.export", "it holds neither a program nor a compiled model")
    try:
        if kind == "compiled":
            return _load_compiled(request, path)
        with torch_compiler(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            program = torch.export.load(path)
    except ModelLoadError:
        raise
    except Exception as error:  # noqa: BLE001  torch raises whatever its readers meet
        raise ModelLoadError(
            f"{path} cannot be loaded: {type(error).__name__}: {short(error)}; export it again with torch "
            f"{torch.__version__}, as installed here"
        ) from None
    return _exported(program, request)


def _exported(program: Any, request: LoadRequest) -> LoadedModel:
    """Return a program's module on the device, with the inputs and outputs that the program declares."""
    from torch.export.passes import move_to_device_pass

    device = torch_device(request.device)
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = program.graph_signature.user_inputs
    inputs = _specs(names, [values.get(name) for name in names], program.range_constraints)
    results = [values.get(name) for name in program.graph_signature.user_outputs]
    result_names = _result_names(program.call_spec.out_spec)
    outputs = _specs(result_names, results, program.range_constraints) if result_names else ()
    arguments, keywords = program.call_spec.in_spec.children()
    call = PositionalCall(
        program.module(),
        order=_order(request, [spec.name for spec in inputs]),
        positional=arguments.num_leaves,
        keywords=tuple(keywords.context),
        rows=_rows([values.get(name) for name in names], program.range_constraints),
    )
    return LoadedModel(call, True, "pytorch_export", inputs, outputs)


def _result_names(spec: Any) -> list[str]:
    """Return the names of a flat result's parts: ksrv's names for a tuple, the keys of a mapping."""
    if spec.is_leaf():
        return ["output"]
    if not all(child.is_leaf() for child in spec.children()):
        return []
    if issubclass(spec.type, Mapping):
        return [str(key) for key in spec.context]
    return [f"output_{index}" for index in range(spec.num_leaves)]


def _load_compiled(request: LoadRequest, path: Path) -> LoadedModel:
    # Not torch._inductor.aoti_load_package: it imports the compiler, and compiles programs to detect the CPU's
    # instruction sets.
    from torch._C._aoti import AOTIModelPackageLoader

    device = torch_device(request.device)
    untyped: Any = AOTIModelPackageLoader  # whose stub lacks a method
    about = untyped.load_metadata_from_package(str(path), MODEL)
    made_for = about.get("AOTI_DEVICE_KEY", device.type)
    if made_for != device.type:
        raise ModelLoadError(f"{path} was compiled for {made_for} and cannot run on {device.type}")
    _check_instructions(path, about.get("AOTI_CPU_ISA", ""))
    index = device.index if device.index is not None else -1
    # False and 1: not `run_single_threaded`, and one runner.
    loader = AOTIModelPackageLoader(str(path), MODEL, False, 1, index)
    arguments, keywords = json.loads(loader.get_call_spec()[0])[1]["children_spec"]
    names = json.loads(keywords["context"]) or []
    call = PositionalCall(
        _CompiledModel(loader, names),
        order=_order(request, []),
        positional=len(arguments["children_spec"]),
        keywords=tuple(names),
    )
    return LoadedModel(call, True, "pytorch_aotinductor")


def _check_instructions(path: Path, needed: str) -> None:
    """Refuse a model that needs instructions which this CPU does not have: SIGILL would end the process.

    Args:
        needed: The set of instructions as torch names it: "AVX2", "AVX512 AMX_TILE".
    """
    flags = _processor_flags()
    for name in needed.lower().split():
        flag = {"avx512": "avx512f", "avx2": "avx2"}.get(name)
        if flag and flags and flag not in flags:
            raise ModelLoadError(
                f"{path} was compiled for a CPU with {name.upper()}, which this CPU lacks; compile it on this machine"
            )


def _processor_flags() -> frozenset[str]:
    """Return the names of the CPU's instruction sets; empty if the system does not list them."""
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
    return frozenset()


class _CompiledModel:
    """A compiled model as a function of tensors.

    Args:
        loader: torch's loader of the package.
        keywords: The names of the keyword arguments, in the program's order.
    """

    def __init__(self, loader: Any, keywords: Sequence[str]) -> None:
        from torch.utils import _pytree as pytree

        self._run = loader.boxed_run
        self._keywords = keywords
        self._flatten, self._unflatten = pytree.tree_leaves, pytree.tree_unflatten
        self._results = pytree.treespec_loads(loader.get_call_spec()[1])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *(kwargs[name] for name in self._keywords)]
        tensors = [leaf for leaf in self._flatten(given) if hasattr(leaf, "dtype")]
        return self._unflatten(self._run(tensors), self._results)


def _order(request: LoadRequest, known: list[str]) -> tuple[str, ...]:
    """Return the inputs' names in the order of the arguments: the package's order if it has the declared names."""
    declared = [spec.name for spec in request.inputs]
    return tuple(known if not declared or set(known) == set(declared) else declared)


def _specs(names: Sequence[str], values: Sequence[Any], ranges: Any) -> tuple[TensorSpec, ...]:
    """Return the declarations of tensors for clients; empty if a value is not a tensor of a KServe v2 datatype."""
    specs = []
    for name, value in zip(names, values, strict=True):
        kind = DATATYPES.get(str(getattr(value, "dtype", None)))
        if kind is None:
            return ()
        shape = [_dimension(size, ranges) for size in value.shape]
        if shape and not isinstance(shape[0], int):
            shape[0] = -1
        specs.append(TensorSpec(name, kind, tuple(shape)))
    return tuple(specs)


def _rows(values: Sequence[Any], ranges: Any) -> tuple[int, int] | None:
    """Return the fewest and most rows that a program accepts, or None if they are not a range."""
    first = next((value for value in values if getattr(value, "shape", ())), None)
    rows = None if first is None else _dimension(first.shape[0], ranges)
    return rows if isinstance(rows, tuple) else None


def _dimension(size: Any, ranges: Any) -> Dimension:
    """Return the dimension of a size in a program, which may be symbolic with a range of values."""
    if isinstance(size, int):
        return size
    bounds = ranges.get(size.node.expr)
    # Bounds are sympy's numbers; an infinite bound is not an integer.
    if bounds is None or not bounds.lower.is_Integer or not bounds.upper.is_Integer:
        return -1
    low, high = max(int(bounds.lower), 1), int(bounds.upper)
    return (low, high) if high < LARGEST else -1
