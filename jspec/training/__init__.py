"""Training of causal language models and of draft heads."""
