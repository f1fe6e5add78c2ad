"""The routes of OpenAI's API that fit models which are not chat models: embeddings, and reranking beside them."""
