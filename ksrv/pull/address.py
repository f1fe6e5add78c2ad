"""Finds the reader of an address: s3://, gs://, az:// or https://."""

from ksrv.errors import quote
from ksrv.pull.source import PullError, Source, without_secrets

SCHEMES = "s3://, gs://, az:// or https://"


def open_source(uri: str) -> Source:
    """Return the source at an address, after listing its files.

    Raises:
        PullError: The address has another form, the files cannot be listed, or a package is missing.
    """
    try:
        if uri.startswith(("s3://", "gs://", "az://", "https://")):
            from ksrv.pull.objects import ObjectSource

            return ObjectSource(uri)
    except ModuleNotFoundError as error:
        raise PullError(
            f"{uri.partition(':')[0]}:// needs {error.name}: pip install obstore"
        ) from error
    raise PullError(f"{quote(without_secrets(uri))} is no address of a model; expected {SCHEMES}")
