"""Encoded images before their pixels: what may be decoded, the memory that takes, and cv2 itself."""
