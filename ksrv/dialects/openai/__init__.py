"""The routes of other APIs for models that are not chat models: OpenAI's embeddings, Cohere's and Jina's rerank."""
