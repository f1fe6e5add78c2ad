"""Links between the documents lead somewhere, files that they name exist, and the menu of the site is short."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
]
DOCUMENTS += [ROOT / name / "README.md" for name in ("benchmarks", "deploy", "native")]
DOCUMENTS += sorted(DOCS.rglob("*.md"))
PATH = re.compile(r"`((?:ksrv|native|tests|tools|benchmarks|examples|protos|docs)/[\w./-]*)`")
PAGE = re.compile(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

MADE = {"benchmarks/results/"}
"""Folders that `make` creates."""

MENU_PAGES = 25


def headings(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    found = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in found)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", word).strip().lower()) for word in words}


def missing(path: Path, anchor: str) -> bool:
    return not path.exists() or (
        anchor != "" and path.suffix == ".md" and anchor not in headings(path)
    )


def links(document: Path) -> list[tuple[str, Path, str]]:
    """Return each link of a document within the repository: as written, its file and its anchor."""
    found = []
    for target in LINK.findall(FENCE.sub("", document.read_text())):
        name, _, anchor = target.partition("#")
        if ":" not in target:
            found.append((target, (document.parent / name).resolve() if name else document, anchor))
    return found


def menu(entries: list) -> list[str]:
    """Return the pages of the menu, in order."""
    pages = []
    for entry in entries:
        [value] = entry.values()
        pages += [value] if isinstance(value, str) else menu(value)
    return pages


def menu_of_the_site() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text()
    return menu(yaml.safe_load(text[text.index("\nnav:") :])["nav"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_paths_exist(document):
    named = set(PATH.findall(document.read_text())) - MADE
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_a_page_and_a_heading(document):
    assert [target for target, path, anchor in links(document) if missing(path, anchor)] == []


def test_pages_that_the_code_names_exist():
    if not (ROOT / ".git").exists():
        pytest.skip("the listing is git's, and this is not a checkout")
    listing = subprocess.run(
        ["git", "grep", "-lI", "docs/"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found = {
        (name, page)
        for name in listing
        if Path(name).suffix != ".md" and not name.startswith("tests/golden/")
        for page in PAGE.findall((ROOT / name).read_text())
    }
    broken = [
        (name, page)
        for name, page in sorted(found)
        if missing(ROOT / page.partition("#")[0], page.partition("#")[2])
    ]
    assert broken == []


def test_menu_is_short_and_leads_to_every_page():
    pages = menu_of_the_site()
    assert len(pages) == len(set(pages)) <= MENU_PAGES
    reached = {DOCS / page for page in pages}
    for page in tuple(reached):
        reached |= {path for _, path, _ in links(page)}
    unreached = [path for path in sorted(DOCS.rglob("*.md")) if path not in reached]
    assert unreached == [], "link these pages from a page of the menu"
