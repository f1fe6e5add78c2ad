"""The cases of each repository, by the name of its checkout."""

from tests.foreign.repositories import (
    client,
    kserve,
    mlserver,
    model_server,
    python_backend,
    serve,
    server,
)

REPOSITORIES = {
    one.folder: one
    for one in (
        client.REPOSITORY,
        server.REPOSITORY,
        python_backend.REPOSITORY,
        serve.REPOSITORY,
        model_server.REPOSITORY,
        kserve.REPOSITORY,
        mlserver.REPOSITORY,
    )
}
