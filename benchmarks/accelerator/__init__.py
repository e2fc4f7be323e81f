"""Measures on an accelerator what the papers' speeds depend on."""
