from asyncio import to_thread
from functools import cache

from ddddocr import DdddOcr

package = cache(DdddOcr)


async def captcha(picture: bytes) -> str:
    return await to_thread(package(show_ad=False).classification, picture)
