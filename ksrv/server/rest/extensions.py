"""The `extensions` of the server's metadata: the parts of the protocol that work here."""

from ksrv.server.settings import ServerSettings

EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "classification",
    "sequence",
    "model_repository",
    "model_configuration",
    "statistics",
    "generate",
    "binary_image_input",
    "binary_data_size_list",
)


def extensions_of(settings: ServerSettings) -> tuple[str, ...]:
    """Return the extensions that work under these settings."""
    if settings.allow_shared_memory:
        return (*EXTENSIONS, "system_shared_memory")
    return EXTENSIONS
