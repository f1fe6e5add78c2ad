"""Runs other projects' examples, samples and suites against ksrv, and prints what became of them.

    python -m tests.foreign.run FOLDER [--only NAME] [--case TEXT] [--write docs/compatibility.md]

FOLDER has the checkouts, under the names of the repositories; missing checkouts are left out. The
commit of each is git's, or the text of FOLDER/NAME.commit. Nothing is fetched. The status is 1 where
something fails that no case names, or works although its case says that it fails.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.foreign.cases import Outcome, Places
from tests.foreign.checkout_commit import commit
from tests.foreign.report import Run, markdown, models, write
from tests.foreign.repositories import REPOSITORIES
from tests.foreign.repositories.python_models import MODELS_LEFT_OUT
from tests.foreign.running import run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkouts", type=Path)
    parser.add_argument(
        "--only", action="append", help="the folder of a repository; may be repeated"
    )
    parser.add_argument("--case", default="", help="run cases whose name has this text")
    parser.add_argument("--work", type=Path, help="keep what the runs leave in this folder")
    parser.add_argument("--write", type=Path, help="a page that gets the tables between its marks")
    parser.add_argument(
        "--write-models", type=Path, help="a page that gets the table of Triton's Python models"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ksrv-foreign-") as temporary:
        runs = [
            run_repository(name, given.checkouts, given.work or Path(temporary), given.case)
            for name in REPOSITORIES
            if (given.checkouts / name).is_dir() and (not given.only or name in given.only)
        ]
    if not runs:
        parser.error(f"{given.checkouts} has none of {', '.join(REPOSITORIES)}")
    table = markdown(runs)
    print(table)
    if given.write:
        write(given.write, table)
    if given.write_models:
        outcomes = [outcome for one in runs for outcome in one.outcomes if outcome.models]
        write(given.write_models, models(outcomes, MODELS_LEFT_OUT))
    surprises = [outcome for one in runs for outcome in one.outcomes if outcome.surprises]
    for outcome in surprises:
        what = "works, and its case says that it fails" if outcome.works else "fails"
        print(f"{outcome.name}: {what}", file=sys.stderr)
    return 1 if surprises else 0


def run_repository(name: str, checkouts: Path, work: Path, text: str) -> Run:
    """Run a repository's cases, with a line on stderr for each."""
    repository = REPOSITORIES[name]
    checkout = (checkouts / name).resolve()
    places = Places(checkout, (work / name).resolve(), checkouts.resolve())
    outcomes: list[Outcome] = []
    for outcome in run(repository, places, wanted=lambda case: text in case):
        outcomes.append(outcome)
        word = "works" if outcome.works else "fails, as named" if outcome.known else "FAILS"
        print(f"{name}: {outcome.name}: {word}", file=sys.stderr, flush=True)
        if outcome.found and not outcome.known:
            print(outcome.found, file=sys.stderr, flush=True)
    return Run(repository, commit(checkout), outcomes)


if __name__ == "__main__":
    sys.exit(main())
