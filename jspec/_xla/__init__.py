"""What XLA needs: platforms, meshes, kernels, loops."""
