"""HTTP itself: bodies and their framing, the memory they take, the fast path, messages for the app."""
