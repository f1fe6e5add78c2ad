"""Adds the pages of the documentation's site that are not in docs/: a hook of MkDocs.

- References are made from the code: the keys of model.yaml, the settings, the handler API, the
  commands' options.
- Pages outside of docs/ (CONTRIBUTING.md and others) become pages of the site, and links to them are
  changed. A link to a source file becomes its text, because the site has no sources; a link to a
  missing file stays, and fails the build.
- Each table of ratios in benchmarks/figures.md gets a plot.
"""

import html
import posixpath
import re
from collections.abc import Iterator
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

API = {
    "Handlers": ["ksrv.handlers.base.BaseHandler", "ksrv.handlers.context.Context", "ksrv.handlers.batch.Batch",
                 "ksrv.handlers.diagnostics.metrics.Metrics", "ksrv.errors.InferenceError", "ksrv.handlers.diagnostics.timing.timed"],
    "One file": ["ksrv.notebook.serving.serve", "ksrv.handlers.declared.settings.settings",
                 "ksrv.handlers.declared.tensor_types.TensorType"],
    "Testing": ["ksrv.testing.models.load", "ksrv.testing.models.Model", "ksrv.testing.stages.batch",
                "ksrv.testing.stages.context", "ksrv.testing.server.Server"],
    "The client": ["ksrv.client.blocking.Client", "ksrv.client.asynchronous.AsyncClient"],
}  # fmt: skip
"""The classes and functions of the API page, by heading."""

_FENCE = re.compile(r"^(?:```.*?^```|    .*?)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside of docs/, and the references."""
    from mkdocs.structure.files import File

    for source, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    made = {
        "reference/model-yaml.md": model_yaml_page(),
        "reference/settings.md": settings_page(),
        "reference/api.md": api_page(),
        "reference/options.md": options_page(),
    }
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
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


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _table(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"
    yield ""


def settings_page() -> str:
    """Return the page of all settings, from their one definition."""
    from ksrv.server.settings_sources import SEVERAL, fields

    lines = [
        "# Settings", "",
        "Every setting of `ksrv serve` has a flag, a variable and a key of the settings file (`--config`, or `KSRV_CONFIG`). A "
        "flag beats a variable, which beats the file, which beats the default. `ksrv serve --print-config` shows every "
        "value and its source. The models are the command's arguments. Keys with a dot are nested: `limits: {body: 64M}`. "
        "A flag without a value has a counterpart: `--no-metrics`.", "",
    ]  # fmt: skip
    sections: dict[str, list[list[str]]] = {"The server": [], "Limits": []}
    for field in fields().values():
        default = "" if field.default in (None, ()) else f"`{field.default}`"
        if isinstance(field.default, bool):
            default = "on" if field.default else "off"
        words = (
            f" One of {', '.join(f'`{word}`' for word in field.choices)}." if field.choices else ""
        )
        if field.takes_several and field.key != "models":
            words += f" {SEVERAL}"
        name = "Limits" if field.key.startswith("limits.") else "The server"
        flag = [] if field.key == "models" else [field.flag]
        names = "<br>".join(f"`{name}`" for name in (*flag, field.variable, field.key))
        sections[name].append([names, default, field.description + words])
    for title, rows in sections.items():
        lines += [
            f"## {title}",
            "",
            *_table(["flag, variable, key", "default", "meaning"], rows),
        ]
    return "\n".join(lines)


def model_yaml_page() -> str:
    """Return the page of the keys of model.yaml, from their schema."""
    from ksrv.repository.json_schema import json_schema

    definitions = json_schema()["$defs"]
    lines = [
        "# Keys of model.yaml", "",
        "Made from the definitions that also check the file; [models, settings and handlers](../models.md#modelyaml) shows them "
        "together and says how they work. `ksrv schema` prints them as a JSON schema for editors.", "",
    ]  # fmt: skip
    for name, definition in definitions.items():
        if "properties" not in definition:
            continue
        title = {"ModelKeys": "A model", "UnpackedKeys": "An unpacked archive of TorchServe"}.get(
            name, name
        )
        needed = definition.get("required", [])
        rows = []
        for key, schema in definition["properties"].items():
            kind, meaning, default = _schema_words(schema)
            required = "needed" if key in needed else default
            rows.append([f"`{key}`", kind, required, meaning])
        lines += [f"## {title}", "", definition.get("description", ""), ""]
        lines += _table(["key", "value", "default", "meaning"], rows)
    return "\n".join(lines)


def _schema_words(schema: dict[str, Any]) -> tuple[str, str, str]:
    """Return what a value may be, what it means, and its default."""
    meaning = schema.get("description", "")
    kinds = []
    for kind in schema.get("anyOf", [schema]):
        if kind.get("type") == "null":
            continue
        inner, said, _ = _schema_words(kind) if "anyOf" in kind else (_kind(kind), "", "")
        kinds.append(inner)
        meaning = meaning or kind.get("description", "") or said
    default = schema.get("default")
    shown = (
        ""
        if default is None
        else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    )
    return " or ".join(dict.fromkeys(kinds)), meaning, shown


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_schema_words(schema['items'])[0]}" if "items" in schema else "list"
    bounds = [str(schema[key]) for key in ("minimum", "maximum") if key in schema]
    names = {
        "integer": "whole number",
        "boolean": "true or false",
        "string": "text",
        "object": "mapping",
    }
    kind = names.get(schema.get("type", ""), schema.get("type", "any value"))
    return f"{kind}, {' to '.join(bounds)}" if len(bounds) == 2 else kind


def api_page() -> str:
    """Return the page of the classes that users write against; mkdocstrings fills it."""
    lines = ["# Handler API", "", "Made from the docstrings.", ""]
    for title, names in API.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"::: {name}", ""]
    return "\n".join(lines)


def options_page() -> str:
    """Return the page of the help of every command."""
    from click.testing import CliRunner

    from ksrv.cli.main import SECTIONS, main

    lines = ["# Options of the commands", "", "The output of `ksrv COMMAND --help`; [the commands](../commands.md) says how to use them.", ""]  # fmt: skip
    for commands in SECTIONS.values():
        for name in commands:
            done = CliRunner().invoke(main, [name, "--help"], prog_name="ksrv", terminal_width=100)
            lines += [f"## ksrv {name}", "", "```text", done.output.rstrip(), "```", ""]
    return "\n".join(lines)
