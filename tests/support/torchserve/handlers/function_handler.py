"""A module-level entry point; it is called once with None when it is loaded."""

calls = []


def handle(data, context):
    calls.append(data is None)
    return None if data is None else [{"calls": calls}] * len(data)


def named(data, context):
    return None if data is None else ["named"] * len(data)
