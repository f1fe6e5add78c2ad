"""`ksrv serve`: every setting is a flag, made from the one definition in `ksrv.server.settings`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ksrv.server.settings import Field, SettingsError, fields, resolve


class CannotServe(click.ClickException):
    """A path that holds nothing to serve: a wrong argument, as click's own usage errors are."""

    exit_code = 2


def _option(field: Field) -> Callable[[Any], Any]:
    name = "setting_" + field.key.replace(".", "__")
    default = "" if field.default in (None, ()) else f"  [default: {field.default}]"
    text = field.description + default
    if isinstance(field.default, bool):
        negative = "--no-" + field.flag.removeprefix("--")
        return click.option(f"{field.flag}/{negative}", name, default=None, help=text)
    if field.choices:
        choice = click.Choice(field.choices)
        return click.option(field.flag, name, type=choice, default=None, help=text)
    multiple = isinstance(field.default, tuple)
    return click.option(field.flag, name, default=None, multiple=multiple, help=text)


def _setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for every setting but the models, which are arguments."""
    for field in reversed([field for key, field in fields().items() if key != "models"]):
        command = _option(field)(command)
    return command


def _no_such_flag(flag: str) -> Callable[[Any], Any]:
    """Let a flag of other servers name the flags that replace it here."""

    def refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(
                f"there is no {flag}: an address is one flag, --http HOST:PORT for REST (such as "
                f"--http 127.0.0.1:8080) and --grpc HOST:PORT for gRPC"
            )

    return click.option(flag, hidden=True, expose_value=False, callback=refuse)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file (YAML or TOML).")
@click.option("--print-config", is_flag=True, help="Print every setting and its source, and end.")
@_setting_options
@_no_such_flag("--port")
@_no_such_flag("--host")
def serve(paths: tuple[Path, ...], config: str | None, print_config: bool, **given: Any) -> None:
    """Serve the models at PATHS until a signal ends it.

    A path is a model repository, one model's folder, one model file, or a handler in a Python file:
    FILE.py or FILE.py:NAME. Every flag is also a
    variable (KSRV_HTTP for --http) and a key of the settings file (http); those that begin with
    --limits- are the section limits (KSRV_LIMITS__BODY for --limits-body).
    """
    flags = {
        name.removeprefix("setting_").replace("__", "."): value for name, value in given.items()
    }
    flags["models"] = tuple(str(path) for path in paths)
    try:
        resolved = resolve(flags, file=config)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    for warning in resolved.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if print_config:
        click.echo(resolved.describe())
        return
    settings = resolved.settings
    if not settings.models:
        raise click.UsageError("give at least one model repository, model folder or model file")
    from ksrv.repository.layout import RepositoryError
    from ksrv.server.workers.application import serve as run

    try:
        run(settings)
    except RepositoryError as error:
        raise CannotServe(str(error)) from error
    except (SettingsError, ValueError) as error:
        raise click.ClickException(str(error)) from error
