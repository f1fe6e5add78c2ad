"""Annotations mean the same in every Python.

From 3.14 on those of a class's fields are evaluated when they are asked for, with the class's own names
in sight: a field `datatype` would hide the module of that name.
"""

import ast

import pytest

from tests.support.paths import ROOT


def hidden(source):
    """Return the names in the annotations of fields that are fields of the same class."""
    found = []
    for defined in ast.walk(ast.parse(source)):
        if isinstance(defined, ast.ClassDef):
            fields = [one for one in defined.body if isinstance(one, ast.AnnAssign)]
            own = {ast.unparse(field.target) for field in fields}
            used = {ast.unparse(name) for field in fields for name in ast.walk(field.annotation)}
            found += sorted(own & used)
    return found


@pytest.mark.parametrize("folder", ["ksrv", "examples"])
def test_no_field_hides_what_an_annotation_names(folder):
    files = [*(ROOT / folder).rglob("*.py")]
    assert {str(file): names for file in files if (names := hidden(file.read_text()))} == {}
