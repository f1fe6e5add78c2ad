"""Reads infer requests whose bodies are forms or files, as curl and browsers send them."""
