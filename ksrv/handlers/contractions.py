"""English contractions and what they stand for, for the text classifier."""

_SUBJECTS = ("i", "you", "he", "she", "it", "we", "they", "who", "what", "that", "there")
_NEGATED = (
    "are", "could", "did", "does", "do", "had", "has", "have", "is", "might", "must", "need",
    "should", "was", "were", "would",
)  # fmt: skip


def _table() -> dict[str, str]:
    table = {f"{verb}n't": f"{verb} not" for verb in _NEGATED}
    table |= {"can't": "cannot", "won't": "will not", "shan't": "shall not", "ain't": "is not"}
    for subject in _SUBJECTS:
        table[f"{subject}'d"] = f"{subject} would"
        table[f"{subject}'ll"] = f"{subject} will"
        table[f"{subject}'ve"] = f"{subject} have"
    for subject in ("you", "we", "they", "who"):
        table[f"{subject}'re"] = f"{subject} are"
    for subject in (
        "he",
        "she",
        "it",
        "that",
        "there",
        "what",
        "who",
        "where",
        "when",
        "how",
        "why",
    ):
        table[f"{subject}'s"] = f"{subject} is"
    table |= {"i'm": "i am", "let's": "let us", "o'clock": "of the clock", "y'all": "you all"}
    return table | {"ma'am": "madam", "'cause": "because"}


CONTRACTION_MAP = _table()
