"""Starting a server: checks of gunicorn and TLS files, notebook cells, settings and addresses of a child process."""
