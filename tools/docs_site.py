"""Adds the pages of the documentation's site that are not in docs/: a hook of MkDocs.

- Pages outside of docs/ (CONTRIBUTING.md and others) become pages of the site, and links to them are
  changed. A link to a source file becomes its text, because the site has no sources; a link to a
  missing file stays, and fails the build.
- A page that is not in the menu, of a folder that is, links to the folder's index below its title.
- Each table of ratios in benchmarks/figures.md gets a plot.
"""

import html
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

BESIDE = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security-policy.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/figures.md": "project/figures.md",
    "deploy/README.md": "project/deploy.md",
    "native/README.md": "project/native.md",
}
"""Pages of the repository, and their paths on the site."""

_FENCE = re.compile(r"^(?:```.*?^```|    .*?)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside of docs/."""
    from mkdocs.structure.files import File

    for source, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at pages of the site, and put plots below tables."""
    where = page.file.src_uri
    origin = next((source for source, made in BESIDE.items() if made == where), f"docs/{where}")
    pieces = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_linked(markdown[end : fence.start()], origin, where), fence[0]]
        end = fence.end()
    text = "".join([*pieces, _linked(markdown[end:], origin, where)])
    folder, name = posixpath.split(where)
    if name != "index.md" and files.get_file_from_path(f"{folder}/index.md"):
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n[{folder.capitalize()}](index.md) ›\n{rest}"
    return _TABLE.sub(_with_plot, text) if where == BESIDE["benchmarks/figures.md"] else text


def _linked(text: str, origin: str, where: str) -> str:
    def replace(match: re.Match[str]) -> str:
        mark, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if path in BESIDE:
            page = BESIDE[path]
        elif path.startswith("docs/") and Path(path).suffix:
            page = path.removeprefix("docs/")
        elif (ROOT / path).exists():
            return label
        else:
            return match[0]
        return (
            f"{mark}[{label}]({posixpath.relpath(page, posixpath.dirname(where) or '.')}{anchor})"
        )

    return _LINK.sub(replace, text)


def _with_plot(match: re.Match[str]) -> str:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in match[0].splitlines()
    ]
    head, *body = rows
    columns = [place for place, name in enumerate(head) if "ratio" in name or " beside " in name]
    if not columns:
        return match[0]
    bars = []
    for row in body[1:]:
        number = re.search(r"\d+(?:\.\d+)?", row[columns[0]])
        if number:
            name = row[0] or "the same"
            bars.append((re.sub(r"[`*]", "", name), float(number[0])))
    return f"{match[0]}\n{_plot(head[columns[0]], bars)}\n\n"


def _plot(title: str, bars: list[tuple[str, float]]) -> str:
    """Return bars as inline SVG in the colours of the page; a line marks 1."""
    left, width, step = 330, 420, 26
    most = max([1.0, *(value for _, value in bars)])
    one = left + width / most
    height = step * len(bars) + 24
    lines = [
        f'<svg viewBox="0 0 800 {height}" role="img" font-size="13" fill="currentColor">',
        f"<title>{html.escape(title)}</title>",
        f'<text x="{one:.0f}" y="14" text-anchor="middle">1</text>',
    ]
    for place, (name, value) in enumerate(bars):
        y = 22 + place * step
        short = name if len(name) <= 48 else f"{name[:47]}…"
        lines += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{html.escape(short)}</text>',
            f'<rect x="{left}" y="{y}" width="{width * value / most:.0f}" height="18" opacity="0.55"/>',
            f'<text x="{left + width * value / most + 6:.0f}" y="{y + 14}">{value:g}</text>',
        ]
    dash = f'<path d="M{one:.0f} 18V{height}" stroke="currentColor" stroke-dasharray="4 4"/>'
    return "".join([*lines, dash, "</svg>"])
