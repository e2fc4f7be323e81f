"""The experiments of DySpec (Xiong et al. 2024), and Sequoia's vectors."""
