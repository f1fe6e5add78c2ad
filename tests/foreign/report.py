"""The tables of a run: one row for each repository, and what failed or was changed below it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.foreign.cases import Outcome, Repository

BEGIN, END = "<!-- make test-foreign writes from here", "<!-- to here -->"


@dataclass(frozen=True)
class Run:
    """A repository's run."""

    repository: Repository
    commit: str
    outcomes: Sequence[Outcome]


def markdown(runs: Sequence[Run]) -> str:
    """Return the tables of several runs."""
    lines = [
        "| repository | commit | tried | work unmodified | work, something changed | fail as named below | fail |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        lines.append("| " + " | ".join(map(str, row(run))) + " |")
    for run in runs:
        lines += ["", f"## {run.repository.name}", "", *details(run)]
    return "\n".join(lines) + "\n"


def models(outcomes: Sequence[Outcome], left_out: Mapping[str, str]) -> str:
    """Return the table of the models of Triton's Python backend: the models that run, and why others do not.

    A model runs if a case that names it works, and none fails without a reason that is named.
    """
    working: set[str] = set()
    failing: set[str] = set()
    why: dict[str, str] = dict(left_out)
    for outcome in outcomes:
        if outcome.works:
            working.update(outcome.models)
            continue
        for model in outcome.models:
            why.setdefault(model, outcome.known or outcome.found)
        if not outcome.known:
            failing.update(outcome.models)
    running = sorted(working - failing)
    others = sorted({*why} - {*running})
    head = f"{len(running)} of {len(running) + len(others)} run: "
    head += ", ".join(f"`{_shown(model)}`" for model in running) + "."
    lines = [
        *textwrap.wrap(head, 120, break_long_words=False, break_on_hyphens=False),
        "",
        "| model | why it does not run |",
        "|---|---|",
        *(f"| `{_shown(model)}` | {cell(why[model])} |" for model in others),
    ]
    return "\n".join(lines) + "\n"


def _shown(model: str) -> str:
    """Return a model's name for the table, in which it must not look like a path of this repository."""
    return model.replace("examples/", "example ").replace("qa/", "").replace("/", " ")


def row(run: Run) -> list[str | int]:
    """Return the cells of a repository's row."""
    working = [outcome for outcome in run.outcomes if outcome.works]
    failing = [outcome for outcome in run.outcomes if not outcome.works]
    return [
        run.repository.name,
        f"`{run.commit[:12]}`" if run.commit else "unknown",
        len(run.outcomes),
        sum(not outcome.changed for outcome in working),
        sum(bool(outcome.changed) for outcome in working),
        sum(bool(outcome.known) for outcome in failing),
        sum(not outcome.known for outcome in failing),
    ]


def details(run: Run) -> list[str]:
    """Return the lines below a repository's heading."""
    working = [outcome for outcome in run.outcomes if outcome.works]
    lines = []
    unmodified = [outcome.name for outcome in working if not outcome.changed]
    if unmodified:
        lines += ["Work as they are: " + ", ".join(grouped(unmodified)) + ".", ""]
    rows = [(names(group), f"works; {why}") for why, group in by(working, "changed") if why]
    failing = [outcome for outcome in run.outcomes if not outcome.works]
    rows += [(names(group), f"fails: {why}") for why, group in by(failing, "known") if why]
    rows += [
        (f"`{outcome.name}`", f"**fails**: {cell(outcome.found)}")
        for outcome in failing
        if not outcome.known
    ]
    rows += [(name, f"not run: {why}") for name, why in run.repository.left_out.items()]
    if rows:
        lines += ["| case | result |", "|---|---|"]
        lines += [f"| {name} | {text} |" for name, text in rows]
    return lines


def by(outcomes: Sequence[Outcome], attribute: str) -> list[tuple[str, list[Outcome]]]:
    """Return outcomes in groups of one value, in the order of their first."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(getattr(outcome, attribute), []).append(outcome)
    return list(groups.items())


def names(outcomes: Sequence[Outcome]) -> str:
    """Return the names of outcomes for a cell."""
    return ", ".join(grouped([outcome.name for outcome in outcomes]))


def grouped(cases: Sequence[str]) -> list[str]:
    """Return the names of cases grouped by script: the script's name, then the variants."""
    scripts: dict[str, list[str]] = {}
    for case in cases:
        script, _, variant = case.partition(" ")
        scripts.setdefault(script, []).append(variant)
    shown = []
    for script, variants in scripts.items():
        told = [f"`{cell(variant)}`" for variant in variants if variant]
        shown.append(f"`{script}`" + (f" ({', '.join(told)})" if told else ""))
        if told and len(told) < len(variants):
            shown[-1] = shown[-1].replace(" (", " (plain, ", 1)
    return shown


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def write(page: Path, table: str) -> None:
    """Put the tables between a page's two marks.

    Raises:
        ValueError: The page does not have the marks.
    """
    text = page.read_text()
    head, begin, rest = text.partition(BEGIN)
    mark, end, foot = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} does not have the two marks")
    first = mark.partition("\n")[0]
    page.write_text(f"{head}{begin}{first}\n\n{table}\n{end}{foot}")
