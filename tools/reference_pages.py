#!/usr/bin/env python3
"""Writes the pages of docs/reference that are made from the code: every setting, key and option.

python tools/reference_pages.py            # writes the pages again
python tools/reference_pages.py --check    # exits with 1 if a page is not current
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs/reference"


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
    from ksrv.server.settings import SECTIONS
    from ksrv.server.settings_sources import SEVERAL, fields

    lines = [
        "# Settings of the server", "",
        "Set an option of `ksrv serve`: each has a flag, a variable, and a key of a settings file (`--config FILE`, or",
        "`KSRV_CONFIG`). `--http` is also `KSRV_HTTP` and the key `http`; `--limits-body` is also `KSRV_LIMITS__BODY` and",
        "`limits: {body: 64M}`. A flag beats a variable, which beats the file, which beats the default.", "",
        "```sh", "ksrv serve --print-config", "```", "",
        "prints every setting and the source of its value. Flags without a value have a counterpart: `--no-metrics`.",
        "The code makes this page: `make references`.", "",
    ]  # fmt: skip
    sections: dict[str, list[list[str]]] = {}
    title = next(iter(SECTIONS.values()))
    for field in fields().values():
        title = SECTIONS.get(field.key.partition(".")[0], title)
        words = (
            f" One of {', '.join(f'`{word}`' for word in field.choices)}." if field.choices else ""
        )
        if field.takes_several and field.key != "models":
            words += f" {SEVERAL}"
        flag = "PATHS" if field.key == "models" else field.flag
        row = [f"`{flag}`", f"`{field.variable}`", _default(field.default)]
        sections.setdefault(title, []).append([*row, field.description + words])
    for title, rows in sections.items():
        lines += [f"## {title}", "", *_table(["flag", "variable", "default", "meaning"], rows)]
    return "\n".join(lines)


def _default(value: object) -> str:
    """Return a default as it is written in a settings file."""
    if value is None or value == () or value == "":
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (tuple, list)):
        return ", ".join(_default(item) for item in value)
    return f"`{_number(value)}`"


def _number(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return str(int(value)) if isinstance(value, float) and whole else str(value)


def model_yaml_page() -> str:
    """Return the page of the keys of model.yaml, from their schema."""
    from ksrv.repository.json_schema import json_schema

    definitions = json_schema()["$defs"]
    titles = {"ModelKeys": "model.yaml"}
    _name_sections(definitions, "ModelKeys", "", titles)
    lines = [
        "# Keys of model.yaml", "",
        "Look up a key of `model.yaml`: its values, its default and its meaning. [Models and",
        "model.yaml](../models.md#modelyaml) shows all keys in one example and says how they work together.", "",
        "```sh", "ksrv schema", "```", "",
        "prints the same definitions as a JSON schema, by which editors complete and check the file. The code makes this page:",
        "`make references`.", "",
    ]  # fmt: skip
    for name in [*titles, *(name for name in definitions if name not in titles)]:
        definition = definitions[name]
        if "properties" not in definition:
            continue
        needed = definition.get("required", [])
        rows = []
        for key, schema in definition["properties"].items():
            kind, meaning, default = _schema_words(schema, definitions, titles)
            required = "needed" if key in needed else default
            rows.append([f"`{key}`", kind, required, meaning])
        lines += [f"## {titles.get(name, name)}", ""]
        if name != "ModelKeys":
            lines += [definition.get("description", "").partition("\n\n")[0], ""]
        lines += _table(["key", "value", "default", "meaning"], rows)
    return "\n".join(lines)


def _name_sections(
    definitions: dict[str, Any], name: str, path: str, titles: dict[str, str]
) -> None:
    """Give each section the title of the first key that leads to it, such as `inputs: image`."""
    for key, schema in definitions[name].get("properties", {}).items():
        for reference in re.findall(r"#/\$defs/(\w+)", str(schema)):
            if reference not in titles:
                titles[reference] = f"{path}: {key}" if path else key
                _name_sections(definitions, reference, titles[reference], titles)


def _schema_words(
    schema: dict[str, Any], definitions: dict[str, Any], titles: dict[str, str]
) -> tuple[str, str, str]:
    """Return what a value may be, what it means, and its default."""
    meaning = schema.get("description", "")
    kinds = []
    for kind in schema.get("anyOf", [schema]):
        if kind.get("type") == "null":
            continue
        words, said = _kind(kind, definitions, titles), kind.get("description", "")
        if "anyOf" in kind:
            words, said, _ = _schema_words(kind, definitions, titles)
        kinds.append(words)
        meaning = meaning or said
    references = re.findall(r"#/\$defs/(\w+)", str(schema))
    if references and not meaning:
        meaning = definitions[references[0]].get("description", "").partition("\n\n")[0]
    default = schema.get("default")
    if isinstance(default, bool):
        default = str(default).lower()
    return " or ".join(dict.fromkeys(kinds)), meaning, _default(default)


def _kind(schema: dict[str, Any], definitions: dict[str, Any], titles: dict[str, str]) -> str:
    if "$ref" in schema:
        title = titles[schema["$ref"].rpartition("/")[2]]
        return f"[{title}](#{title.lower().replace(': ', '-')})"
    if "enum" in schema:
        return ", ".join(
            f"`{str(word).lower() if isinstance(word, bool) else word}`" for word in schema["enum"]
        )
    if schema.get("type") == "array":
        inner = _schema_words(schema["items"], definitions, titles)[0] if "items" in schema else ""
        return f"list of {inner}" if inner else "list"
    bounds = [_number(schema[key]) for key in ("minimum", "maximum") if key in schema]
    names = {
        "integer": "whole number",
        "boolean": "true or false",
        "string": "text",
        "object": "mapping",
    }
    kind = names.get(schema.get("type", ""), schema.get("type", "any value"))
    return f"{kind}, {' to '.join(bounds)}" if len(bounds) == 2 else kind


def options_page() -> str:
    """Return the page of the help of every command."""
    from click.testing import CliRunner

    from ksrv.cli.main import SECTIONS, main

    lines = [
        "# Command-line options", "",
        "Look up an option of a command: this is the output of `ksrv COMMAND --help`. [Command line](../commands.md) says how",
        "to use the commands. The code makes this page: `make references`.", "",
    ]  # fmt: skip
    for commands in SECTIONS.values():
        for name in commands:
            done = CliRunner().invoke(main, [name, "--help"], prog_name="ksrv", terminal_width=100)
            lines += [f"## ksrv {name}", "", "```text", done.output.rstrip(), "```", ""]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Return the text of each page by its path."""
    made = {
        "settings.md": settings_page(),
        "model-yaml.md": model_yaml_page(),
        "options.md": options_page(),
    }
    return {FOLDER / name: f"{text.rstrip()}\n" for name, text in made.items()}


def main() -> int:
    """Write the pages, or compare them with the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    old = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    for path in old:
        print(
            f"{path.relative_to(FOLDER.parent.parent)} {'is not current' if check else 'written'}"
        )
        if not check:
            path.write_text(pages()[path])
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
