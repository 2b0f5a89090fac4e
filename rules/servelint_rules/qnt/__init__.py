"""Rules of quantization."""
