"""`ksrv.serve(Cats)`: a script's process becomes the server; in a notebook the server is a child of the kernel."""

import atexit
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ksrv.server import script
from ksrv.server.launch.cells import delete, shell

if TYPE_CHECKING:
    from ksrv.client import Client

Handler = type | Callable[..., Any] | str | Path


class NotebookServer:
    """A server in a child process of a notebook's kernel. It ends with the kernel.

    Args:
        handlers: Handler classes, functions, or paths that `ksrv serve` takes.
        server: Settings of `ksrv serve`; both ports are free ports unless given.
        settings: The keys of model.yaml for the only handler.

    Raises:
        CannotServe: A handler cannot be written into a file, or a setting is not a plain value.
        ServerFailed: The server does not start; the error's text contains its log.
    """

    def __init__(
        self, handlers: tuple[Handler, ...], server: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        from ksrv.testing.server import Server

        self._server = Server(handlers, wait_ready=False, handler_settings=settings, **server)
        self._server.start()
        atexit.register(self.stop)
        try:
            self._server.wait_loaded()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The HTTP address as a URL; in a browser it shows the page."""
        return self._server.url

    @property
    def grpc(self) -> str:
        """The gRPC address as HOST:PORT; "" if gRPC is off."""
        return self._server.grpc

    @property
    def log(self) -> str:
        """The output of the server, its workers and its handlers so far."""
        return self._server.log

    def client(self, **options: Any) -> "Client":
        """Return a client of this server.

        Args:
            options: As for `ksrv.client.Client`: `token`, `timeout`, ...
        """
        from ksrv.client import Client

        return Client(self.url, **options)

    def stop(self) -> None:
        """End the server; does nothing if it has ended."""
        atexit.unregister(self.stop)
        self._server.close()
        # Handlers of cells were written to files, which are deleted. `delete` leaves the user's files as they are.
        for target in self._server.targets:
            delete(target)

    def __enter__(self) -> "NotebookServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<ksrv server {self.url if self._server.running else 'stopped'}>"

    def _repr_html_(self) -> str:
        if not self._server.running:
            return "ksrv server, stopped"
        url = escape(self.url, quote=True)
        return f'ksrv serves at <a href="{url}" target="_blank" rel="noopener">{url}</a>'


def serve(
    *handlers: Handler,
    name: str | None = None,
    http: str | None = None,
    grpc: str | None = None,
    workers: int | None = None,
    reload: bool | None = None,
    server: Mapping[str, Any] | None = None,
    **settings: Any,
) -> NotebookServer:
    """Serve handlers: in a script until a signal ends the process, in a notebook until `stop()`.

    In a script nothing runs after this call. In a notebook it returns when the models are loaded, and a server that an
    earlier call started for the same handlers is stopped before. In a module that is imported it does nothing, so that
    a handler can be imported from its script.

    Args:
        handlers: Handler classes or functions at the top of a file or in a notebook's cell, or paths that `ksrv serve`
            takes.
        name: The model's name; by default `Cats` is served as `cats`.
        http: The HTTP address, such as "127.0.0.1:8080"; in a notebook a free port by default.
        grpc: The gRPC address, or "off".
        workers: How many worker processes serve.
        reload: Whether the handler is loaded anew as soon as its files change.
        server: Any other setting of `ksrv serve`, such as `{"token_file": "tokens"}`.
        settings: The keys of model.yaml for the only handler: `batching={"max_batch_size": 8}`,
            `executor="process"`, `inputs={"x": Float32[4]}`, ...; they win over `@settings`.

    Returns:
        In a notebook the running server.

    Raises:
        CannotServe: A handler has no file or name to be found by, or a setting is not a plain value.
        ServerFailed: In a notebook, the server does not start; the error's text contains its log.
    """
    named = {"model_name": name, "http": http, "grpc": grpc, "workers": workers, "reload": reload}
    flags = {**(server or {}), **{key: value for key, value in named.items() if value is not None}}
    running = shell()  # IPython's shell; None outside of a notebook
    if running is None:
        script.serve(handlers, flags, settings)
        return None  # type: ignore[return-value]  # in a module that is imported, which has no use for it
    # The kernel keeps the servers, so that a cell that runs again finds the server that it started.
    known = running.meta.setdefault("ksrv_servers", {})
    key = (name, *(getattr(handler, "__qualname__", str(handler)) for handler in handlers))
    if key in known:
        known.pop(key).stop()
    known[key] = NotebookServer(handlers, flags, settings)
    made: NotebookServer = known[key]
    return made
