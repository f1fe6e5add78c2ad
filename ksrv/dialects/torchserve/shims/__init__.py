"""Stand-ins for the packages `ts` and `torchvision` where they are not installed."""
