from asyncio import to_thread
from functools import cache

from magika import Magika

package = cache(Magika)


async def filetype(file: bytes) -> dict:
    found = await to_thread(package().identify_bytes, file)
    return {"label": found.output.label, "mime": found.output.mime_type, "score": found.score}
