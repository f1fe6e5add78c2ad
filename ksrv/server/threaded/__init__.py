"""HTTP where the native server may not stand in front: gunicorn's threads, framing, `100 Continue`, slow transfers."""
