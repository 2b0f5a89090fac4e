"""Rules of launch arguments: flags that do not exist, do not take effect, or are refused."""
