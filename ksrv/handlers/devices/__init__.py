"""The devices that handlers compute on: how one is chosen, and how tensors are copied to it and back."""
