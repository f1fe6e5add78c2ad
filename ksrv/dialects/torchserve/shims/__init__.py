"""Stand-ins for the packages `ts` and `torchvision`, used if these are not installed."""
