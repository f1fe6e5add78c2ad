"""Annotations mean the same in every version of Python.

Since 3.14 the annotations of a class's fields are evaluated on access, with the class's attributes in scope: a field
`datatype` would hide the module of that name.
"""

import ast

import pytest

from tests.support.paths import ROOT


def hidden(source):
    """Return names in field annotations that are also fields of the class."""
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
