"""The contract of drafters and models, for other people's code."""
