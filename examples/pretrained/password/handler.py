from asyncio import to_thread

from passeval import evaluate_password


async def strength(password: str) -> dict:
    return await to_thread(evaluate_password, password)
