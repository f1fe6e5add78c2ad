"""Text of several generations at once, token by token: `ts.handler_utils.hf_batch_streamer`.

One thread calls `generate` of the transformers package with such an object as its `streamer`. Another thread iterates
over the object, and sends each step to the clients. transformers is imported when the first object is made, because
handlers import this module even if they do not use it.
"""

from typing import Any


class TextIteratorStreamerBatch:
    """Iterates over the texts of a batch of generations.

    Each step is a list with one `{"text": ...}` for every row, in order; the text is "" if a row has no new
    whole word yet. After the end of one generation the object may serve the next.

    Args:
        skip_prompt: Whether to leave out the prompts.
        timeout: Seconds that a step may take; unlimited by default.
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
            ValueError: The number of rows is not the batch size.
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
