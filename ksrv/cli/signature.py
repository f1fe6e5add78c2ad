"""`ksrv check --signature`: compares a model with its signature before any code of the model runs.

The signature is that of OpenSSF model signing, which the package model-signing checks.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click


def signature_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --signature and --signed-by to a command that takes `paths`, and check the signature before it runs."""

    @click.option(
        "--signature",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="First compare the model with this signature (OpenSSF model signing); needs --signed-by.",
    )
    @click.option(
        "--signed-by",
        metavar="FILE",
        help="The PEM file with the signer's public key, or with the certificates to trust; or IDENTITY,ISSUER of "
        "Sigstore, which uses the network.",
    )
    @wraps(command)
    def checked(paths: Any, signature: Path | None, signed_by: str | None, **options: Any) -> None:
        if (signature is None) != (signed_by is None) or (signature and len(paths) != 1):
            raise click.UsageError("--signature needs --signed-by, and one of PATHS")
        if signature and signed_by:
            _verify(paths[0], signature, signed_by)
        command(paths=paths, **options)

    return checked


def _verify(path: Path, signature: Path, signed_by: str) -> None:
    """Compare a model with its signature.

    Raises:
        ClickException: They differ, or the signature or the key cannot be used.
    """
    try:
        from model_signing.verifying import Config
    except ModuleNotFoundError as error:
        raise click.ClickException(
            "--signature needs: pip install model-signing pyOpenSSL"
        ) from error
    try:
        if not Path(signed_by).is_file() and "," in signed_by:
            identity, _, issuer = signed_by.rpartition(",")
            config = Config().use_sigstore_verifier(identity=identity, oidc_issuer=issuer)
        elif b"CERTIFICATE" in Path(signed_by).read_bytes():
            config = Config().use_certificate_verifier(certificate_chain=[signed_by])
        else:
            config = Config().use_elliptic_key_verifier(public_key=signed_by)
        config.verify(path, signature)
    except Exception as error:  # the library raises the errors of its parsers
        raise click.ClickException(f"{path} is not as {signature} signs it: {error}") from error
    click.echo(f"{path} is as {signature} signs it", err=True)
