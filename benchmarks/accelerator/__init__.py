"""Measures on an accelerator what the papers' speeds hang on."""
