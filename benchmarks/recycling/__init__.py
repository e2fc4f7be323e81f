"""The experiments of Token Recycling (Luo et al. 2024), and mixtures at equal budgets."""
