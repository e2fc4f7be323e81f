"""Operations on arrays that JAX lacks or has slower: ragged rows, best of many, memories."""
