"""Splits a text into the words and n-grams that models for TorchServe's text classifier were trained with.

HTML tags and entities are removed, letters become lower case, contractions are written out, and accents and punctuation
are removed. The rest is split into words and n-grams, whose numbers are in the vocabulary.
"""

import re
import string
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from ksrv.handlers.builtin.contractions import CONTRACTION_MAP

UNKNOWN = "<unk>"
CLEANUP_REGEX = r"<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});"

_PUNCTUATION = str.maketrans("", "", string.punctuation)
CONTRACTIONS_PATTERN = re.compile("|".join(map(re.escape, CONTRACTION_MAP)))
_BASIC_ENGLISH = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"'", " '  "), (r'"', ""), (r"\.", " . "), (r"<br \/>", " "), (r",", " , "), (r"\(", " ( "),
        (r"\)", " ) "), (r"\!", " ! "), (r"\?", " ? "), (r"\;", " "), (r"\:", " "), (r"\s+", " "),
    )
]  # fmt: skip


def remove_html(text: str) -> str:
    """Return a text without tags and entities."""
    return re.sub(CLEANUP_REGEX, "", text)


def expand_contractions(text: str) -> str:
    """Return a lower-case text with its contractions written out, without apostrophes.

    A contraction keeps its first letter ("ain't" becomes "as not") and is found inside of words too,
    because models for TorchServe were trained with these words.
    """
    expanded = CONTRACTIONS_PATTERN.sub(
        lambda found: found[0][0] + CONTRACTION_MAP[found[0]][1:], text
    )
    return expanded.replace("'", "")


def remove_accents(text: str) -> str:
    """Return a text without accents and without all other characters that are not ASCII."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def remove_punctuation(text: str) -> str:
    """Return a text without ASCII punctuation."""
    return text.translate(_PUNCTUATION)


def basic_english(text: str) -> list[str]:
    """Split a text into words and punctuation marks, in lower case."""
    text = text.lower()
    for pattern, replacement in _BASIC_ENGLISH:
        text = pattern.sub(replacement, text)
    return text.split()


def clean_words(text: str) -> list[str]:
    """Return the words of a text, cleaned."""
    text = expand_contractions(remove_html(text).lower())
    return basic_english(remove_punctuation(remove_accents(text)))


def ngrams(words: Sequence[str], longest: int) -> Iterator[str]:
    """Yield words, then their runs of 2 up to `longest` words, joined by blanks."""
    runs = (
        zip(*(words[start:] for start in range(length)), strict=False)
        for length in range(2, longest + 1)
    )
    yield from words
    for run in chain.from_iterable(runs):
        yield " ".join(run)


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return the number of each word.

    Args:
        path: A JSON object or list, or a plain dict that `torch.save` wrote.

    Returns:
        The numbers; for a list, the indices of its words.

    Raises:
        ValueError: The file holds anything else.
    """
    if path.suffix == ".json":
        import json

        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"the vocabulary {path.name} cannot be read: {error}") from None
    else:
        import torch

        try:
            content = torch.load(path, weights_only=True)
        except Exception as error:  # noqa: BLE001  torch raises whatever unpickling meets
            raise ValueError(
                f"the vocabulary {path.name} holds more than a plain dict, which is not loaded; "
                f"store it as JSON ({type(error).__name__})"
            ) from None
    if isinstance(content, list):
        content = {word: number for number, word in enumerate(content)}
    plain = isinstance(content, Mapping) and all(
        isinstance(word, str) and isinstance(number, int) for word, number in content.items()
    )
    if not plain:
        raise ValueError(f"the vocabulary {path.name} must give a number for each word")
    return dict(content)
