"""`ksrv doctor`: checks this machine and environment, and prints what each finding means and what to do about it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

import click

from ksrv.cli.progress import Progress
from ksrv.doctor.finding import Finding
from ksrv.doctor.machine import limits, memory, processors
from ksrv.doctor.software import devices, libraries, settings, versions

COLOURS = {"ok": "green", "note": "cyan", "slow": "yellow", "wrong": "red"}
"""The levels of a finding, with their colours."""

CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    versions, processors, memory, limits, libraries, devices, settings,
)  # fmt: skip


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    "--all/--problems", "everything", default=True, help="Print the checks that pass too."
)
def doctor(as_json: bool, everything: bool) -> None:
    """Check this machine and environment, and say what to mend.

    Each finding says what it means for ksrv, and what to do. The exit status is 1 if something does not
    work, else 0. Put the output into a bug report.
    """
    found: list[Finding] = []
    with Progress() as progress:
        for examine in CHECKS:
            progress.show(f"looking at {examine.__name__}")
            try:
                found += examine()
            except Exception as error:  # noqa: BLE001 - a check that fails must not end the others
                text = f"cannot be looked at: {type(error).__name__}: {error}"
                found.append(Finding("note", examine.__name__, text))
    shown = [one for one in found if everything or one.level != "ok"]
    if as_json:
        click.echo(json.dumps({"findings": [asdict(one) for one in shown]}, indent=2))
    else:
        for one in shown:
            _print(one)
        counts = {level: sum(one.level == level for one in found) for level in COLOURS}
        click.echo("\n" + ", ".join(f"{count} {level}" for level, count in counts.items()))
    if any(one.level == "wrong" for one in found):
        raise click.exceptions.Exit(1)


def _print(one: Finding) -> None:
    mark = click.style(one.level.ljust(5), fg=COLOURS[one.level])
    click.echo(f"{mark}  {one.subject}: {one.found}")
    if one.means:
        click.echo(f"         means: {one.means}")
    if one.do:
        click.echo(f"         do:    {one.do}")
