"""One-pass block heads: what the noise is worth when their trees are ranked by it."""
