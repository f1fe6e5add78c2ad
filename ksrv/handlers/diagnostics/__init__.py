"""What a handler tells: its log, metrics and times, and what a developer sees of failures and profiles."""
