"""Files, routes and clients of other servers: one folder for each dialect, which nothing else names."""
