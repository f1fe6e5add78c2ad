"""Takes a while to answer, like a model on a slow machine. The same question is asked once."""

import asyncio

import numpy as np

from ksrv import BaseHandler


class Member(BaseHandler):
    async def inference(self, question: np.ndarray) -> dict[str, list[str]]:
        batch = self.context.batch
        word = str(batch.requests[0].parameters["likes"])
        await asyncio.sleep(0.01)
        return {"answer": ["yes" if word.encode() in text else "no" for text in question]}
