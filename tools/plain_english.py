#!/usr/bin/env python3
"""List the lines of comments, docstrings, messages and documents that use a construct that is not plain English.

    python tools/plain_english.py [FILE ...]     # print the lines; exit with 1 if any were found
    python tools/plain_english.py --count        # print how many lines each folder has

A line that needs a construct says so: `plain-english: keep` in a comment of the same line.
"""

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

CONSTRUCTS = {
    "if, when or unless": r"(?:^|[.:;] )Where (?!to\b|is\b|are\b|do\b|does\b)(?![^.]*\?)"
    r"|, where (?:it|they|there|no|that|this|one|none|nothing|its)\b|\bwhere (?:there|no|none|nothing|nobody)\b",
    "after or then": r"\bbehind (?:it|them|that|this|the last|the first|the header|the head|each|every)\b",
    "reports, returns an error or logs": r"\b(?:is|are|was|were|be|been|being) told\b|\btold (?:that|of|about|by)\b"
    r"|\bsays? so\b",
    "the noun": r"\bones\b(?!\()|\b(?:the|that|this|another|other|each|every|any|no|new|old|last|first|next|same) one\b(?! of\b)"
    r"|\b[Aa]n? \w+ one\b|\bthose (?:of|that|which|with|without)\b|\bof those\b",
    "no, unknown or missing": r"\b[Tt]here (?:is|are) (?:no|none)\b|\b(?:is|are) none\b|\bthat there (?:is|are)\b",
    "nothing (the word is filler)": r"\bof (?:its|their|his|her|our|a \w+'s) own\b|\b(?:its|their|the \w+'s|ksrv's) own\b",
    "the thing itself": r"\bas far as\b|(?:^|[.:;] )Whatever\b|(?:^|[.:;] )What (?![^.]*\?)",
    "arrives, is sent, is in, is stored or is true": r"\b(?:stands?|lies?|lay|stood) (?:in|on|at|for|there|beside|behind|below|above"
    r"|before|alone)\b|\b(?:stands|lies|comes|goes)(?=[.,;:]|$)|\bholds?(?=[.,;:]|$)|\bholds? (?:for|here|too|everywhere)\b"
    r"|\bgoes (?:to|into|with|by|over|on|back|out)\b|\bcomes (?:in|with|to|back|after|before|first|next|last)\b",
}
"""The better words, with the pattern of the banned construct."""

PATTERN = re.compile("|".join(f"(?P<c{i}>{p})" for i, p in enumerate(CONSTRUCTS.values())))
MARK = "plain-english: keep"
EXAMPLES = "tests/test_plain_english.py"
"""The test of this tool, which has the constructs as examples."""
PYTHON = {".py", ".pyi"}
C_LIKE = {".cpp", ".hpp", ".c", ".h", ".js", ".css", ".pyx", ".pxd"}


_AROUND = re.compile(r"^\s*(?:#\s*|[rRfFbBuU]{0,2}[\"']+)?|[\"'\s]+$")
"""The characters around the words of a line: indentation, the mark of a comment, quotes."""


def python_text(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments and of strings that are sentences."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (
            token.type in {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
            and " " in token.string
        ):
            for offset, line in enumerate(token.string.split("\n")):
                yield token.start[0] + offset, _AROUND.sub("", line)


def c_text(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments, and the strings that are sentences, of C++, Cython, JavaScript and CSS."""
    inside = ""
    for number, line in enumerate(source.split("\n"), 1):
        text = line.strip()
        if inside:
            yield number, text
            inside = "" if inside in text else inside
        elif text.startswith(("/*", '"""')):
            mark = "*/" if text.startswith("/*") else '"""'
            yield number, text.strip('/*" ')
            inside = "" if mark in text[2 + (mark == '"""') :] else mark
        else:
            for piece in re.findall(r'"((?:[^"\\]|\\.)* (?:[^"\\]|\\.)*)"', text):
                yield number, piece
            comment = re.search(
                r"(?://|(?<![\w\"'])#(?!include|define|if|endif|pragma|else|elif|error|undef)) ?(.*)",
                text,
            )
            if comment:
                yield number, comment.group(1)


def document_text(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a document outside its code."""
    fenced = False
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("    ", "#")):
            yield number, re.sub(r"`[^`]*`", "`x`", line.strip().lstrip("-*>|#0123456789. "))


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of English in a file, with its number."""
    source = path.read_text(encoding="utf-8")
    if path.suffix in PYTHON:
        return python_text(source)
    return document_text(source) if path.suffix == ".md" else c_text(source)


def faults(path: Path) -> list[tuple[int, str, str]]:
    """Return (line number, words found, what to write instead) of a file, one for each line."""
    source = path.read_text(encoding="utf-8").split("\n")
    found: dict[int, tuple[int, str, str]] = {}
    for number, text in text_lines(path):
        match = PATTERN.search(text)
        if match and match.lastgroup and MARK not in source[number - 1]:
            better = list(CONSTRUCTS)[int(match.lastgroup[1:])]
            found.setdefault(number, (number, match.group().strip(), better))
    return list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: all that git knows")
    parser.add_argument("--count", action="store_true", help="print how many lines each folder has")
    options = parser.parse_args()
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    suffixes = PYTHON | C_LIKE | {".md"}
    known = [
        ROOT / name
        for name in listing.split()
        if Path(name).suffix in suffixes and name != EXAMPLES
    ]
    counts: Counter[str] = Counter()
    for path in [named.resolve() for named in options.files] or known:
        relative = path.relative_to(ROOT)
        found = faults(path)
        counts["/".join(relative.parts[:-1][:2]) or relative.name] += len(found)
        if not options.count:
            for number, words, better in found:
                print(f"{relative}:{number}: {words!r}: write {better}")
    if options.count:
        for folder, count in counts.most_common():
            print(f"{count:6,} {folder}")
    total = sum(counts.values())
    print(f"{total:,} lines are not plain English")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
