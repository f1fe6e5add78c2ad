"""The output of `ksrv serve`: addresses, the table of models, a line to try.

The addresses are printed at once, the table when the models are loaded. Programs should not parse this output: the
setting `status_fd` gives them the same facts as JSON.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import ksrv
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.server.addresses import Address
from ksrv.server.log_stream import log_stream
from ksrv.server.settings import ServerSettings

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

COLUMNS = ("model", "version", "handler", "device", "inputs", "outputs", "load", "warm-up", "ready")
TENSORS = {"inputs": "in", "outputs": "out"}
"""The columns of tensors, and their labels below a row."""

OPEN_TO_THIS_MACHINE = (
    "Anyone on this machine can load and unload models. Set --control-token-file to prevent it "
    "(needed behind a proxy: docs/security.md)"
)
OPEN_ON_SOCKET = "Anyone who can open the unix socket can load and unload models"
NEEDS_CONTROL_TOKEN = "Calls that load and unload models need a token of --control-token-file"
NO_CONTROL = "No call loads or unloads models (--model-control {})"


def control_note(settings: ServerSettings, *, sockets_only: bool) -> str:
    """Return a sentence about who may load and unload models.

    Args:
        sockets_only: Whether the server listens on unix sockets only.
    """
    if settings.model_control in ("none", "poll"):
        return NO_CONTROL.format(settings.model_control)
    if settings.control_token_file is not None:
        return NEEDS_CONTROL_TOKEN
    return OPEN_ON_SOCKET if sockets_only else OPEN_TO_THIS_MACHINE


def print_addresses(http: Sequence[str] | None, grpc: Address | None, *, control: str) -> None:
    """Print the addresses of the server.

    Args:
        http: URLs of the HTTP listeners, or None if HTTP is off.
        grpc: The gRPC address, or None if gRPC is off.
        control: Who may load and unload models.
    """
    _say(f"ksrv {ksrv.__version__}")
    for url in http if http is not None else ["off"]:
        _say(f"HTTP  {url}")
    _say(f"gRPC  {grpc or 'off'}")
    _say(control)


def _say(text: str) -> None:
    """Print a line; drop it if it cannot be written, because a full disk must not end a server."""
    stream = log_stream(sys.stdout)
    stream.write(f"{text}\n")
    stream.flush()


def show_tensor(spec: TensorSpec) -> str:
    """Return one tensor in a few characters: "image FP32[-1,224,224,3]"."""
    sizes = ",".join(
        str(entry) if isinstance(entry, int) else f"{entry[0]}:{entry[1]}" for entry in spec.shape
    )
    return f"{spec.name} {spec.datatype}[{sizes}]"


def show_tensors(specs: Sequence[TensorSpec]) -> str:
    """Return a model's tensors; a model that declares none takes any."""
    return ", ".join(show_tensor(spec) for spec in specs) or "any"


@dataclass(frozen=True)
class Row:
    """One line of the table, and an error that is shown below it."""

    cells: tuple[str, ...]
    error: str = ""


def model_table(rows: Sequence[Row], width: int | None = None, *, coloured: bool = False) -> str:
    """Return the models in columns.

    Args:
        width: The width of the terminal. In a table that is wider, the tensors of each model are below its row.
        coloured: Whether "ready" and errors have colours.
    """
    lines = [COLUMNS, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    # 2: the spaces between columns.
    stacked = width is not None and sum(widths) + 2 * (len(widths) - 1) > width
    columns = [index for index, name in enumerate(COLUMNS) if not stacked or name not in TENSORS]

    def painted(text: str, *, good: bool) -> str:
        return f"\x1b[{32 if good else 31}m{text}\x1b[0m" if coloured else text

    def cells(line: Sequence[str]) -> list[str]:
        return [line[column].ljust(widths[column]) for column in columns]

    shown = ["  ".join(cells(COLUMNS)).rstrip()]
    for row in rows:
        *first, ready = cells(row.cells)
        ready = painted(ready, good=row.cells[-1] == "yes")
        shown.append("  ".join([*first, ready]).rstrip())
        if stacked:
            for name, label in TENSORS.items():
                shown.append(f"  {label:<3} {row.cells[COLUMNS.index(name)]}")
        if row.error:
            shown.append(f"  {painted(row.error, good=False)}")
    return "\n".join(shown)


def print_table(rows: Sequence[Row]) -> None:
    """Print the models; on a terminal with colours, and no wider than the terminal."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        _say(model_table(rows, width, coloured="NO_COLOR" not in os.environ))
    else:
        _say(model_table(rows))


def local_url(url: str) -> str:
    """Return the URL by which clients on this machine reach a server.

    A server that listens on every address is reached by the loopback address, because browsers, and clients on some
    systems, do not connect to 0.0.0.0 or [::].
    """
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def example_line(spec: ModelSpec, url: str, settings: ServerSettings) -> str:
    """Return a `curl` command that gets an answer from a model without further preparation.

    A model with sequences gets a whole sequence. For a model that declares no inputs, or takes others as well, the
    command asks for its metadata.
    """
    from ksrv.client.command.code import Call, curl_code, curl_options, example_input
    from ksrv.client.command.connection import Credentials

    tokens = None if settings.token_file is None else Path(settings.token_file)
    credentials = Credentials(tokens, settings.tls_cert)
    if not spec.inputs or spec.accepts_any_inputs:
        return " ".join(["curl -s", *curl_options(credentials), f"{url}/v2/models/{spec.name}"])
    inputs = tuple(
        example_input(
            entry.name,
            entry.datatype,
            [size if isinstance(size, int) else size[0] for size in entry.shape],
            entry.image is not None,
        )
        for entry in spec.inputs
    )
    sequence = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    parameters = {} if spec.sequences is None else sequence
    return curl_code(Call(url, spec.name, "", inputs, credentials, parameters=parameters))


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.2f} s" if nanoseconds else "-"


def _handler(model: "ModelVersion") -> str:
    config = model.config
    if config.handler is None or config.handler.startswith("ksrv."):  # a built-in handler
        return model.spec.platform
    path, colon, name = config.handler.partition(":")
    return f"{PurePath(path).name}{colon}{name}"


def _row(model: "ModelVersion") -> Row:
    spec = model.spec
    return Row(
        (
            spec.name,
            spec.version or "-",
            _handler(model),
            spec.device or model.config.device,
            show_tensors(spec.inputs),
            show_tensors(spec.outputs),
            _seconds(model.load_ns),
            "FAILED" if model.warm_up_error else _seconds(model.warm_up_ns),
            "yes" if model.ready else "no",
        ),
        model.reason or model.warm_up_error,
    )


def print_models(engine: "Engine", url: str | None, settings: ServerSettings) -> None:
    """Print the table of models, a line to try, and where the page is.

    Args:
        engine: The engine, after its models were loaded.
        url: The server's URL, or None if HTTP is off.
        settings: The server's settings: its credentials, and whether it has a page.
    """
    models = engine.loaded()
    rows = [_row(model) for model in models]
    shown = {(row.cells[0], row.cells[1]) for row in rows}
    dormant = engine.dormant()
    for state in engine.index():
        if state.name in dormant:
            continue
        version = state.version or "-"
        if (state.name, version) not in shown:
            rows.append(Row((state.name, version, *["-"] * 6, "no"), state.reason))
    _say("")
    if rows:
        print_table(sorted(rows, key=lambda row: row.cells[:2]))
    if dormant:
        _say(f"models that are loaded when requests name them: {len(dormant)}")
    ready = [model.spec for model in models if model.ready]
    if url is not None and ready:
        _say(f"\n{example_line(ready[0], local_url(url), settings)}")
    if url is not None and settings.ui:
        _say(f"\nIn a browser: {local_url(url)}/")
