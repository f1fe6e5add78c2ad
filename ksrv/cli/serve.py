"""`ksrv serve`: turns the command line into server settings, and starts the server.

Every setting has a flag, made from its definition in `ksrv.server.settings`. Flags override environment variables and
the settings file (`ksrv.server.settings_sources`).
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import click

from ksrv.server.settings import SECTIONS, SettingsError
from ksrv.server.settings_sources import SEVERAL, SIZE_KEYS, Field, Resolved, fields, resolve


class SectionedCommand(click.Command):
    """A command whose help has its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        titles: dict[str, str] = {}
        title = ""
        for key in fields():
            # SECTIONS has the first key of each section: the next keys belong to the same section.
            title = SECTIONS.get(key.partition(".")[0], title)
            titles[key.replace(".", "__")] = title
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        sections |= {title: [] for title in (*SECTIONS.values(), "Ray")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            name = str(parameter.name)
            title = titles.get(name.removeprefix(PREFIX), "Options")
            if name in ("host", "port"):
                title = "Addresses"
            elif name.startswith("ray_"):
                title = "Ray"
            sections[title].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CannotServe(click.ClickException):
    """A path has no model to serve. The exit code is that of click's usage errors, because an argument is wrong."""

    exit_code = 2


PREFIX = "setting_"
"""Begins the parameter names of settings, so that they differ from the command's other parameters."""

RATES = frozenset({"limits.client_rate"})
"""Settings that are floats, but not seconds."""


def _metavar(field: Field) -> str | None:
    """Return the placeholder for a value in the help, by the setting's type."""
    if field.key in SIZE_KEYS:
        return "SIZE"
    kind = get_args(field.type)[0] if get_origin(field.type) is Annotated else field.type
    if kind is float:
        return "N" if field.key in RATES else "SECONDS"
    return "N" if kind is int else None


def _option(field: Field) -> Callable[[Any], Any]:
    """Return the click option of a setting. Its default is None, so that other sources can give the value."""
    name = PREFIX + field.key.replace(".", "__")
    default = "" if field.default in (None, ()) else f"  [default: {field.default}]"
    text = field.description + default
    if isinstance(field.default, bool):
        negative = "--no-" + field.flag.removeprefix("--")
        return click.option(f"{field.flag}/{negative}", name, default=None, help=text)
    if field.choices:
        choice = click.Choice(field.choices)
        return click.option(field.flag, name, type=choice, default=None, help=text)
    if field.takes_several:
        text += f" {SEVERAL}"
    return click.option(
        field.flag,
        name,
        default=None,
        multiple=field.takes_several,
        help=text,
        metavar=_metavar(field),
    )


def _setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for every setting except for the models, which are arguments."""
    # Reversed, because click shows the option of the innermost decorator last.
    for field in reversed([field for key, field in fields().items() if key != "models"]):
        command = _option(field)(command)
    return command


def _with_address(flags: dict[str, Any], host: str | None, port: int | None) -> None:
    """Apply --host and --port to the settings `http` and `grpc`. --port is of HTTP only.

    Raises:
        click.UsageError: --http is given as well.
    """
    given = [flag for flag, value in (("--host", host), ("--port", port)) if value is not None]
    if not given:
        return
    known = fields()
    for key in ("http", "grpc"):
        if key == "grpc" and host is None:
            continue
        if flags[key] is not None:
            if key == "grpc":
                continue  # --grpc has an address, or "off", and takes precedence over --host
            raise click.UsageError(f"--{key} is an address already; expected it without {given[0]}")
        default_host, _, default_port = str(known[key].default).rpartition(":")
        chosen = port if key == "http" and port is not None else default_port
        named = host if host is not None else default_host
        flags[key] = f"[{named}]:{chosen}" if ":" in named else f"{named}:{chosen}"


def _serve_on_ray(address: str, resolved: Resolved, name: str, replicas: str) -> None:
    from ksrv.ray.command import serve as run

    try:
        run(address, resolved, name=name, replicas=replicas)
    except (SettingsError, ConnectionError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error


@click.command(cls=SectionedCommand)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file (YAML or TOML).")
@click.option(
    "--print-config",
    is_flag=True,
    help="Print every setting and where its value comes from, and end.",
)
@_setting_options
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Serve in replicas on the Ray cluster at ADDRESS (HOST:PORT or auto) until this command ends.",
)
@click.option(
    "--ray-replicas",
    metavar="N",
    default="1",
    help="Number of replicas, or MIN:MAX for autoscaling.  [default: 1]",
)
@click.option(
    "--ray-app", metavar="NAME", default="default", help="Name of Ray Serve's application."
)
@click.option("--host", help="Host of the HTTP and gRPC addresses, instead of 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the HTTP address.")
def serve(
    paths: tuple[Path, ...],
    config: str | None,
    print_config: bool,
    host: str | None,
    port: int | None,
    ray_address: str | None,
    ray_replicas: str,
    ray_app: str,
    **given: Any,
) -> None:
    """Serve the models at PATHS until a signal ends it.

    A path is a model repository (also a Triton repository), a model's folder, a model file, a handler in a
    Python file (FILE.py or FILE.py:NAME), or the config.json of an OpenVINO Model Server.

    \b
      ksrv serve models/
      ksrv serve bright.py --port 9090
      ksrv serve models/ --http 0.0.0.0:8080 --token-file tokens

    Every option is also a variable (KSRV_HTTP for --http) and a key of the settings file (http). In the
    settings file, the options that begin with --limits- are the section limits (KSRV_LIMITS__BODY for
    --limits-body).
    """  # noqa: D301 - click reads the character
    flags = {name.removeprefix(PREFIX).replace("__", "."): value for name, value in given.items()}
    _with_address(flags, host, port)
    flags["models"] = tuple(str(path) for path in paths)
    try:
        resolved = resolve(flags, file=config)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    warnings = list(resolved.warnings)
    if "GUNICORN_CMD_ARGS" in os.environ:
        warnings.append(
            "ksrv serve does not read GUNICORN_CMD_ARGS: use its options, or start gunicorn itself"
            " (gunicorn -c python:ksrv.server.gunicorn)"
        )
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    if print_config:
        click.echo(resolved.describe())
        return
    settings = resolved.settings
    if not settings.models:
        raise click.UsageError("give at least one model repository, model folder or model file")
    if ray_address is not None:
        _serve_on_ray(ray_address, resolved, ray_app, ray_replicas)
        return
    gc.disable()  # during imports: a collection would traverse all imported objects, and free none
    from ksrv.repository.layout import RepositoryError
    from ksrv.server.workers.application import serve as run

    gc.enable()
    try:
        run(settings)
    except RepositoryError as error:
        raise CannotServe(str(error)) from error
    except (SettingsError, ValueError) as error:
        raise click.ClickException(str(error)) from error
