"""The text handlers of TorchServe: `ts.torch_handler.text_handler` and `.text_classifier`.

Every row of a batch is classified; TorchServe classifies only the first. The vocabulary has the number of each token:
a plain dict in `source_vocab.pt`, or a JSON object.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ksrv.dialects.torchserve.api.handlers.base_handler import BaseHandler
from ksrv.dialects.torchserve.api.handlers.layer_gradients import layer_integrated_gradients
from ksrv.dialects.torchserve.api.labels import map_class_to_label
from ksrv.handlers.builtin import tokenizer as cleaning
from ksrv.handlers.builtin.tokenizer import UNKNOWN, basic_english


def get_tokenizer(name: str | None, language: str = "en") -> Callable[[str], list[str]]:
    """Return the `basic_english` tokenizer, or for None a function that splits at blanks.

    Raises:
        ValueError: Another tokenizer is asked for.
    """
    if name is None:
        return str.split
    if name == "basic_english" and language == "en":
        return basic_english
    raise ValueError(
        f"the tokenizers here are basic_english and None, not {name!r} for {language!r}"
    )


def ngrams_iterator(tokens: Sequence[str], ngrams: int) -> Any:
    """Yield the tokens, then their n-grams up to the given length, joined by blanks."""
    return cleaning.ngrams(tokens, ngrams)


class TextHandler(BaseHandler):
    """Loads the vocabulary of the archive, and has the functions that clean text."""

    source_vocab: Any = None
    tokenizer: Callable[[str], list[str]] = staticmethod(basic_english)

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        manifest = self.manifest or {}
        name = manifest.get("model", {}).get("sourceVocab") or "source_vocab.pt"
        self.source_vocab = load_vocabulary(context.system_properties["model_dir"], name)
        self.initialized = True

    _remove_html_tags = staticmethod(cleaning.remove_html)
    _expand_contractions = staticmethod(cleaning.expand_contractions)
    _remove_accented_characters = staticmethod(cleaning.remove_accents)
    _remove_punctuation = staticmethod(cleaning.remove_punctuation)
    _remove_puncutation = _remove_punctuation  # the name that TorchServe's handlers know

    def _tokenize(self, text: str) -> list[str]:
        return self.tokenizer(text)

    def get_word_token(self, input_tokens: Sequence[str]) -> list[str]:
        """Return tokens without the blank sign of byte-pair tokenizers."""
        return [token.replace("\u0120", "") for token in input_tokens]

    def summarize_attributions(self, attributions: Any) -> Any:
        """Return the softmax of attributions over their last axis, scaled by TorchServe's rule."""
        shares = attributions.softmax(dim=-1)
        return shares / shares.sum(dim=-1).norm()


class TextClassifier(TextHandler):
    """Answers with the probability of each label.

    The model takes (tokens, offsets), as torch's EmbeddingBag does: the tokens of all texts in one row, and where each
    text begins.
    """

    ngrams = 2
    _words: Sequence[list[str]] = ()  # the words of each row of the last `preprocess`

    def preprocess(self, data: Any) -> Any:
        import torch

        self._words = [self._split(row.get("data") or row.get("body")) for row in data]
        rows = [
            [self._number(token) for token in ngrams_iterator(words, self.ngrams)]
            for words in self._words
        ]
        lengths = [0, *(len(row) for row in rows[:-1])]
        offsets = torch.tensor(lengths, dtype=torch.int64).cumsum(0)
        tokens = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
        return tokens.to(self.device), offsets.to(self.device)

    def _split(self, text: Any) -> list[str]:
        if isinstance(text, (bytes, bytearray)):
            text = text.decode("utf-8")
        text = self._remove_html_tags(text).lower()
        text = self._remove_accented_characters(self._expand_contractions(text))
        return self._tokenize(self._remove_punctuation(text))

    def _number(self, token: str) -> int:
        vocabulary = self.source_vocab
        if isinstance(vocabulary, dict):
            return int(vocabulary[token] if token in vocabulary else vocabulary.get(UNKNOWN, 0))
        return int(vocabulary[token])

    def inference(self, data: Any, *arguments: Any, **options: Any) -> Any:
        import torch

        tokens, offsets = data
        with torch.inference_mode():
            return self.model(tokens, offsets)

    def postprocess(self, data: Any) -> list[Any]:
        probabilities = data.softmax(dim=1).tolist()
        return map_class_to_label(probabilities, self.mapping)

    def get_insights(self, text_preprocess: Any, _: Any, target: Any = 0) -> list[Any]:
        """Return the words of each text, and how much each value of its embedding adds to a class.

        Returns:
            For each text `importances`, in the shape of the embedding's output, and `words`.

        Raises:
            RuntimeError: The model has no eager module `embedding`, whose output is explained.
        """
        tokens, offsets = text_preprocess
        texts = tokens.tensor_split(offsets.cpu()[1:])
        layer = getattr(self.model, "embedding", None)
        answers = []
        for text, words in zip(texts, self._words, strict=True):
            # The first offset is 0: each text is given to the model as a batch of one text.
            added = layer_integrated_gradients(
                lambda given: self.model(given, offsets[:1]), layer, text, int(target)
            )
            importances = self.summarize_attributions(added).tolist()
            answers.append({"importances": importances, "words": self.get_word_token(words)})
        return answers


def load_vocabulary(folder: str, name: str) -> Any:
    """Return the numbers by token.

    Args:
        name: A .json file, or a file that `torch.save` wrote. If the latter is missing, a .json file of the same name
            is read.

    Raises:
        RuntimeError: The file is missing, or does not have a plain dict.
    """
    path = Path(folder, name)
    if not path.is_file():
        path = path.with_suffix(".json")
    if not path.is_file():
        raise RuntimeError(
            f"the vocabulary {name} is not in the archive; add it with --extra-files or --source-vocab"
        )
    try:
        return cleaning.read_vocabulary(path)
    except ValueError as error:
        raise RuntimeError(str(error)) from error
