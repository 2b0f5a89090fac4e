"""Rules of kernels."""
