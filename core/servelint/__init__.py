"""servelint: reviews a large-language-model serving deployment before it runs."""

__version__ = "0.1.0"
