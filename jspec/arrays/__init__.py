"""Operations on arrays that JAX has not, or not as fast: ragged rows, the best of many, the
rows of a memory.
"""
