"""The devices that handlers compute on: which one, and how tensors come there and back."""
