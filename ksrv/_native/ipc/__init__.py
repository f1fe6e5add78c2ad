"""Messages and shared blocks between a worker and an executor process."""
