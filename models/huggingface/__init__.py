"""What Hugging Face calls things: the fields of config.json and the tensors of each family."""
