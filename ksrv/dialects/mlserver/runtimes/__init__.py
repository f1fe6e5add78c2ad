"""MLServer's own runtimes, for servers without its packages."""
