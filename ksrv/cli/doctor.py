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
    """Check this machine and environment, and print what to fix.

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
    shown = [entry for entry in found if everything or entry.level != "ok"]
    if as_json:
        click.echo(json.dumps({"findings": [asdict(entry) for entry in shown]}, indent=2))
    else:
        for finding in shown:
            _print(finding)
        counts = {level: sum(entry.level == level for entry in found) for level in COLOURS}
        click.echo("\n" + ", ".join(f"{count} {level}" for level, count in counts.items()))
    if any(entry.level == "wrong" for entry in found):
        raise click.exceptions.Exit(1)


def _print(finding: Finding) -> None:
    mark = click.style(finding.level.ljust(5), fg=COLOURS[finding.level])
    click.echo(f"{mark}  {finding.subject}: {finding.found}")
    if finding.means:
        click.echo(f"         means: {finding.means}")
    if finding.do:
        click.echo(f"         do:    {finding.do}")
