"""Every case of the table has a test, and every test that names a case has its row."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_cases_and_their_table_agree():
    rows = re.findall(r"^\| (K\d\d) \|", (HERE / "cases.md").read_text(), flags=re.MULTILINE)
    assert rows == [f"K{number:02}" for number in range(1, 58)]
    tested = set()
    for file in HERE.glob("test_*_cases.py"):
        for name in re.findall(r"^def test((?:_k\d\d)+)_", file.read_text(), flags=re.MULTILINE):
            tested.update(name.upper().strip("_").split("_"))
    assert tested == set(rows)
