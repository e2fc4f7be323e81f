"""What speculation costs and gains on the accelerator at hand, or on a CPU in small."""
