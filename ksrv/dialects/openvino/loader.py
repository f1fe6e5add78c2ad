"""Loads a model with OpenVINO, changed by the options of another server's configuration.

The options (`OpenVinoOptions`) come from the config.json of an OpenVINO Model Server, or from a Triton repository.
`ksrv.loaders.openvino` does the loading, and calls `_adapted` before it compiles the model.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from ksrv.dialects.openvino.options import OpenVinoOptions
from ksrv.loaders import openvino as core
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError
from ksrv.loaders.openvino import dimension, name_of, reshape
from ksrv.model.spec import Dimension

_LOOPS = "; 'low_latency_transformation' makes variables of its loops"


def load(request: LoadRequest) -> LoadedModel:
    """Load a model, changed by the options in `request.dialect`.

    Raises:
        ModelLoadError: See `ksrv.loaders.openvino.load`; or the options do not fit the model.
    """
    options = OpenVinoOptions.of(request.dialect)
    loaded = core.load(request, partial(_adapted, options))
    # By default a model forgets its variables before each batch, and logs a note. A stateful model keeps
    # them.
    return replace(loaded, note=None, forget=None) if options.stateful else loaded


def _adapted(options: OpenVinoOptions, model: Any, request: LoadRequest) -> Any:
    """Return the model with the shapes, layouts, variables and names of the options."""
    reshape(model, _shapes(options, model, request))
    model = _laid_out(model, options)
    if options.low_latency:
        _make_loops_variables(model)
    if options.stateful and not model.get_variables():
        raise ModelLoadError(
            f"{request.path} has no variables that could be a state{_LOOPS if not options.low_latency else ''}"
        )
    for port in (*model.inputs, *model.outputs):
        if (name := options.names.get(name_of(port))) is not None:
            port.get_tensor().set_names({name})
    return model


def _shapes(
    options: OpenVinoOptions, model: Any, request: LoadRequest
) -> dict[str, tuple[Dimension, ...]]:
    """Return the wanted shapes of inputs, by name. Inputs that keep their shape are left out."""
    ports = {name_of(port): port for port in model.inputs}
    wanted = dict(options.shapes)
    if "" in wanted and len(ports) == 1:  # a shape without a name is that of the only input
        wanted[next(iter(ports))] = wanted.pop("")
    unknown = [name for name in wanted if name not in ports]
    if unknown:
        raise ModelLoadError(
            f"{request.path} has no input {unknown[0]!r} to give a shape; it has {', '.join(ports)}"
        )
    for name, port in ports.items():
        shape = port.get_partial_shape()
        if shape.rank.is_dynamic:
            continue
        if wanted.get(name) == ():  # "auto"
            wanted[name] = tuple(-1 for _ in shape)
        elif name not in wanted and options.batch and len(shape):
            layout = port.get_node().get_layout()
            place = layout.get_index_by_name("N") if layout.has_name("N") else 0
            sizes = [dimension(size) for size in shape]
            wanted[name] = (*sizes[:place], options.batch, *sizes[place + 1 :])
    return {name: shape for name, shape in wanted.items() if shape}


def _laid_out(model: Any, options: OpenVinoOptions) -> Any:
    """Return the model with conversions from the layouts that clients use to the layouts in the model file."""
    if not options.layouts:
        return model
    import openvino

    prepost = openvino.preprocess.PrePostProcessor(model)
    inputs = [name_of(port) for port in model.inputs]
    known = [*inputs, *map(name_of, model.outputs)]
    for name, layout in options.layouts.items():
        if name and name not in known:
            raise ModelLoadError(f"unknown tensor {name!r} in layout; known are {', '.join(known)}")
        outer, _, inner = layout.partition(":")
        place = name or inputs[0]
        side = prepost.input(place) if place in inputs else prepost.output(place)
        side.tensor().set_layout(openvino.Layout(outer))
        if inner:
            side.model().set_layout(openvino.Layout(inner))
    return prepost.build()


def _make_loops_variables(model: Any) -> None:
    """Turn the state of the model's loops into variables, so that a run continues where the last run ended."""
    from openvino.passes import LowLatency2, Manager

    manager = Manager()
    manager.register_pass(LowLatency2())
    manager.run_passes(model)
