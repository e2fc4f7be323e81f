"""The experiments of RSD (Jeon et al. 2024), and the share of drafts that each rule keeps."""
