"""Text of several generations at once, token by token: `ts.handler_utils.hf_batch_streamer`.

The class is handed to `generate` of the transformers package as its `streamer`, on one thread, and
iterated on another, which sends each step to the clients. transformers itself is imported by the
first object that is made, not by the handler's import.
"""

from typing import Any


class TextIteratorStreamerBatch:
    """Iterates over the texts of a batch of generations.

    Each step is a list with one `{"text": ...}` for every row, in order; "" where a row has no new
    whole word yet. After the end of one generation the object may serve the next.

    Args:
        skip_prompt: Whether the prompts are left out.
        timeout: How many seconds a step may take; none by default.
        decode_kwargs: Further keywords of the tokenizer's `decode`.

    Raises:
        ImportError: transformers is not installed.
    """

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        try:
            from transformers import TextIteratorStreamer  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise ImportError(
                "TextIteratorStreamerBatch needs transformers: pip install transformers"
            ) from error
        self.batch_size = batch_size
        self.streamers = [
            TextIteratorStreamer(tokenizer, skip_prompt, timeout, **decode_kwargs)
            for _ in range(batch_size)
        ]

    def put(self, value: Any) -> None:
        """Take the next tokens of every row; called by `generate`, with the prompts first.

        Args:
            value: A tensor with one row, or one token, for each row of the batch.

        Raises:
            ValueError: It has another number of rows.
        """
        rows = value.shape[0]
        if rows != self.batch_size:
            raise ValueError(
                f"the tokens are for {rows} rows (shape {tuple(value.shape)}); this streamer was"
                f" made for a batch of {self.batch_size}"
            )
        for row, streamer in enumerate(self.streamers):
            streamer.put(value[row : row + 1])

    def end(self) -> None:
        """Take note that the generation is over; called by `generate`."""
        for streamer in self.streamers:
            streamer.end()

    def __iter__(self) -> "TextIteratorStreamerBatch":
        return self

    def __next__(self) -> list[dict[str, str]]:
        """Return the next step's texts, waiting for them.

        Raises:
            StopIteration: The generation is over.
            queue.Empty: The timeout passed.
        """
        texts = [next(streamer, None) for streamer in self.streamers]
        # Rows end together, because tokens come for all of them at once.
        found = [{"text": text} for text in texts if text is not None]
        if len(found) < len(texts) or not texts:
            raise StopIteration
        return found
