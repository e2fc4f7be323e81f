"""Drafters that continue the target's hidden states with a trained head."""
