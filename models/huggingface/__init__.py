"""Hugging Face's names for the fields of config.json and the tensors of each family."""
