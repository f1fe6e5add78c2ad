"""Stands in for the package of this name, which Python 3.10 and later cannot import."""


class AttrDict(dict):
    """A dictionary whose keys are attributes, through lists and dictionaries in it."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return wrapped(self[name])


def wrapped(value):
    """Return a value whose dictionaries have attributes."""
    if isinstance(value, dict):
        return AttrDict(value)
    return [wrapped(item) for item in value] if isinstance(value, list) else value
