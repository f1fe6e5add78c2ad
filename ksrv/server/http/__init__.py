"""HTTP itself: bodies and their framing, the memory they hold, the fast path, messages for the app."""
