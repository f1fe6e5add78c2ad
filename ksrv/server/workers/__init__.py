"""Worker processes: the master, a worker's life, and the tables that workers share."""
