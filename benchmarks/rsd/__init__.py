"""The experiments of RSD (Jeon et al. 2024), and which verification rule keeps how much."""
