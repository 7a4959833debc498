"""Fused kernels, registered as custom operators with a fake implementation and a gradient."""
