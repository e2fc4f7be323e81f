"""The experiments of Lyanna (Chen et al. 2026), EAGLE alongside it."""
