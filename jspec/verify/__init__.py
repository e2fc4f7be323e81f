"""Verification: the ways to draw children, and the verifiers that decide which are kept."""
