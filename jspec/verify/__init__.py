"""Verification: how children are drawn, and what decides which of them are kept."""
