"""Writes the VEX document of a release (CycloneDX 1.6).

It has ksrv's answers to the advisories in the tables of docs/security.md, whose attacks the tests send to ksrv, and in
advisories.toml, whose rows win.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cyclonedx_document import document

ADVISORIES = Path(__file__).with_name("advisories.toml")
PAGE = Path(__file__).resolve().parents[2] / "docs/security.md"
NUMBER = re.compile(r"CVE-\d{4}-\d{4,}")


def in_tables() -> Iterator[dict[str, Any]]:
    """Yield a row for each line of the page's tables. A table, or its line, names the file of the tests."""
    test = ""
    for line in PAGE.read_text().partition("## Advisories of the field\n")[2].splitlines():
        if named := re.search(r"`(tests/\S+\.py)`", line):
            test = named[1]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and (numbers := NUMBER.findall(cells[0])):
            answer = "" if test in cells[3] else f" ksrv's answer: {cells[3]}."
            yield {
                "ids": numbers,
                "of": cells[1],
                "state": "not_affected",
                "justification": "code_not_present",
                "detail": f"The attack: {cells[2]}.{answer}",
                "evidence": [test],
            }


def advisories() -> list[dict[str, Any]]:
    """Return the rows of advisories.toml, and of the tables those whose numbers are not there."""
    rows = list(tomllib.loads(ADVISORIES.read_text())["advisory"])
    known = {number for row in rows for number in row["ids"]}
    for row in in_tables():
        row["ids"] = [number for number in row["ids"] if number not in known]
        rows += [row] if row["ids"] else []
    return rows


def affected(row: dict[str, Any], packages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the packages of the release that an advisory is about."""
    wanted = row.get("package", "").rpartition("/")[2]
    for package in packages:
        if wanted and package["purl"].partition("@")[0].rpartition("/")[2] == wanted:
            yield package


def vulnerability(row: dict[str, Any], number: str, references: list[str]) -> dict[str, Any]:
    analysis = {"state": row["state"], "detail": row["detail"]}
    if "justification" in row:
        analysis["justification"] = row["justification"]
    shown = [{"name": "evidence", "value": path} for path in row["evidence"]]
    return {
        "bom-ref": number,
        "id": number,
        "source": {"name": "NVD", "url": f"https://nvd.nist.gov/vuln/detail/{number}"},
        "description": f"An advisory of {row['of']}",
        "analysis": analysis,
        "affects": [{"ref": reference} for reference in references],
        "properties": shown,
    }


def vex(version: str, epoch: int, packages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the document.

    Args:
        version: ksrv's.
        epoch: The time of the release, in seconds since 1970.
        packages: The components of the release's bills of materials.
    """
    ours = f"pkg:pypi/ksrv@{version}"
    named: dict[str, dict[str, Any]] = {}
    found = []
    for row in advisories():
        about = {package["purl"]: package for package in affected(row, packages)}
        for purl, package in about.items():
            kept = {key: package[key] for key in ("type", "name", "version", "purl")}
            named[purl] = kept | {"bom-ref": purl}
        found += [vulnerability(row, number, [ours, *sorted(about)]) for number in row["ids"]]
    release = {"bom-ref": ours, "name": "ksrv", "version": version, "purl": ours}
    components = [named[purl] for purl in sorted(named)]
    return document(
        f"{ours} {epoch} vex", epoch, release, components=components, vulnerabilities=found
    )
