"""What other servers' files, routes and clients need: one folder for each of these dialects, named nowhere else."""
