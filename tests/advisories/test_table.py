"""The tables of docs/security.md and the cases name the same advisories."""

import re
from pathlib import Path

import pytest

from tests.advisories.peers.bite import PEERS
from tests.support.paths import ROOT

NUMBER = re.compile(r"CVE-\d{4}-\d+|GHSA(?:-\w{4}){3}|(?:triton|vllm|LitServe)#\d+")
TEXT = (ROOT / "docs/security.md").read_text().partition("## Advisories of the field\n")[2]
TABLES = re.split(r"\n(?=\S.* in `tests/advisories/|Attacks that )", TEXT)[1:]


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))


def cases_of(table: str) -> list[tuple[str, str]]:
    """(advisories, file) of each row; the file is in the row or above the table."""
    above = re.search(r"`(tests/\S+\.py)`", table)
    rows = [line for line in table.splitlines() if line.startswith("|") and NUMBER.search(line)]
    return [
        (row, found[1]) for row in rows if (found := re.search(r"`(tests/\S+\.py)`", row) or above)
    ]


ROWS = [row for table in TABLES for row in cases_of(table)]


@pytest.mark.parametrize(("row", "file"), ROWS, ids=[NUMBER.findall(row)[0] for row, _ in ROWS])
def test_case_of_each_advisory_exists(row: str, file: str) -> None:
    text = (ROOT / file).read_text()
    if "attacks import" in text:
        text += (ROOT / "tests/advisories/attacks.py").read_text()
    assert numbers(row) <= numbers(text)


def test_each_case_is_in_a_table() -> None:
    files = [path for path in Path(__file__).parent.glob("*.py") if path != Path(__file__)]
    cases = set().union(*(numbers(path.read_text()) for path in files))
    assert cases <= numbers(TEXT)


def test_table_names_the_release_of_each_peer() -> None:
    for peer in PEERS:
        [row] = [row for row, _ in ROWS if peer.number in numbers(row)]
        name, _, release = peer.packages.split()[0].partition("==")
        assert f"{name} {release}" in row, peer.number
