"""The `ksrv` command: a group of commands. The module of a command is imported when the command is called.

So `ksrv --help` imports neither numpy nor the server. The summaries are here for the same reason; a test compares them
with the commands' help.
"""

from difflib import get_close_matches
from os.path import exists
from pkgutil import resolve_name
from typing import Any

import click

import ksrv

SECTIONS = {
    "Serve": {
        "serve": "Serve the models at PATHS until a signal ends it.",
        "check": "Load and warm up the models at PATHS, and report the models that fail.",
        "pull": "Copy the model at URI into FOLDER, which appears when all files are there.",
        "import": "Report how ksrv reads the settings of another server's models at PATH.",
    },
    "Call a server": {
        "infer": "Send FILES to MODEL and print the answer; without files, print the inputs of MODEL.",
        "client": "Print code that calls MODEL: curl, Python, JavaScript.",
        "bench": "Send requests to MODEL, and print throughput and latency.",
        "promote": "Serve the version that MODEL's shadow: names, if it agrees with the version that serves.",
    },
    "Begin": {
        "init": "Write a model folder to start from: handler, model.yaml, sample and test.",
        "schema": "Print the JSON schema of model.yaml.",
        "doctor": "Check this machine and environment, and print what to fix.",
    },
}
"""The commands of each section of the help, with their summaries."""

_IN_OTHER_FOLDERS = {
    "import": "ksrv.dialects.import_command:import_models",
    "infer": "ksrv.client.command.infer:infer",
    "client": "ksrv.client.command.code:client",
    "bench": "ksrv.bench.command:bench",
    "pull": "ksrv.pull.command:pull",
    "promote": "ksrv.shadow.command:promote",
}
"""Commands that are not in `ksrv.cli.NAME`: their module and function."""


class Commands(click.Group):
    """Loads a command when it is called, and lists the commands in sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help. click completes them in a shell."""
        return [name for commands in SECTIONS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None for an unknown name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        path = _IN_OTHER_FOLDERS.get(cmd_name, f"ksrv.cli.{cmd_name}:{cmd_name}")
        command: click.Command = resolve_name(path)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. If the native core cannot be loaded, print the error without a traceback."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            if not (error.name or "").startswith("ksrv._native."):
                raise
            raise click.ClickException(str(error)) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name.

        Raises:
            UsageError: The name is unknown; the text suggests the nearest command.
        """
        name = args[0]
        # No error during completion.
        if not ctx.resilient_parsing and name[:1] != "-" and name not in self.list_commands(ctx):
            if near := get_close_matches(name, self.list_commands(ctx), n=1):
                ctx.fail(f"unknown command {name!r}; did you mean {near[0]!r}?")
            if exists(name):
                ctx.fail(f"unknown command {name!r}; to serve these models: ksrv serve {name}")
            ctx.fail(f"unknown command {name!r}; `ksrv --help` lists the commands")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of the help."""
        width = max(map(len, self.list_commands(ctx)))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ksrv.__version__, prog_name="ksrv")
def main() -> None:
    """Serve models over the KServe v2 protocol."""
