"""English contractions and their long forms, for the text classifier.

The table has no double contractions. The first half of a double contraction ("couldn't've") is written out and the rest
loses its apostrophe, as in TorchServe's text handlers, with which the models were trained.
"""

_WITH_NOT = (
    "are", "could", "dare", "did", "does", "do", "had", "has", "have", "is", "may", "might", "must",
    "need", "ought", "should", "was", "were", "would",
)  # fmt: skip
_WITH_WOULD = ("i", "you", "he", "she", "it", "we", "they", "that", "there")
_WITH_WILL = ("i", "you", "he", "she", "it", "we", "they", "who", "what", "how")
_WITH_HAVE = (
    "i", "you", "we", "they", "who", "what", "could", "might", "must", "should", "so", "to", "when",
    "where", "why", "will", "would",
)  # fmt: skip
_WITH_ARE = ("you", "we", "they", "what")
_WITH_IS = ("he", "she", "it", "that", "there", "what", "who", "where", "when", "how", "why")
_OTHERS = {
    "can't": "cannot",
    "won't": "will not",
    "shan't": "shall not",
    "sha'n't": "shall not",
    "ain't": "is not",
    "how'd": "how did",
    "where'd": "where did",
    "i'm": "i am",
    "let's": "let us",
    "so's": "so as",
    "o'clock": "of the clock",
    "y'all": "you all",
    "ma'am": "madam",
    "'cause": "because",
}


def _table() -> dict[str, str]:
    table = {f"{verb}n't": f"{verb} not" for verb in _WITH_NOT}
    for words, ending, meaning in (
        (_WITH_WOULD, "d", "would"),
        (_WITH_WILL, "ll", "will"),
        (_WITH_HAVE, "ve", "have"),
        (_WITH_ARE, "re", "are"),
        (_WITH_IS, "s", "is"),
    ):
        table |= {f"{word}'{ending}": f"{word} {meaning}" for word in words}
    return table | _OTHERS


CONTRACTION_MAP = _table()
