from asyncio import to_thread
from functools import cache

from text2tashkeel import Diacritizer

package = cache(Diacritizer)


async def vowels(text: str) -> str:
    return await to_thread(package().diacritize, text)
