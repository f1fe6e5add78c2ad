"""Asks two members at the same time, and serves other clients while it waits for them."""

import asyncio

import numpy as np

from ksrv import BaseHandler


class Panel(BaseHandler):
    async def inference(self, question: np.ndarray) -> dict[str, list[str]]:
        member = self.context.models["member"]
        calls = [
            member.submit({"question": list(question)}, parameters={"likes": colour})
            for colour in ("red", "blue")
        ]
        answers = [found["answer"] for found in await asyncio.gather(*calls)]
        return {"verdict": [b", ".join(row).decode() for row in zip(*answers, strict=True)]}
