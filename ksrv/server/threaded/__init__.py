"""HTTP on gunicorn's threads, where the native HTTP server may not stand in front."""
