"""Reads the descriptions of attributes from docstrings: they are the help of settings and of the keys of model.yaml."""

import inspect
import re

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def attribute_descriptions(kind: type) -> dict[str, str]:
    """Return the descriptions in the section "Attributes" of a class's docstring, by attribute.

    `python -OO` removes docstrings; the result is then empty.
    """
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:")
    return {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(section)}
