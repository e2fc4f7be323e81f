"""The experiments of DySpec (Xiong et al. 2024), Sequoia's vectors, and equal budgets."""
