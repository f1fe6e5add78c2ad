"""What listens: the Falcon app, the gunicorn glue, the gRPC servicer and their life cycle."""
