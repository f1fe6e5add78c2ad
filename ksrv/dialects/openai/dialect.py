"""The dialect of OpenAI's embeddings and Cohere's reranking, for models with a `role:` in model.yaml."""

from typing import TYPE_CHECKING, Any

from ksrv.dialects.dialect import AppParts, Dialect

if TYPE_CHECKING:
    import falcon


class OpenAi(Dialect):
    """See the module."""

    name = "openai"

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`."""
        from ksrv.dialects.openai.routes import add_routes

        add_routes(app, parts)


DIALECT = OpenAi()
