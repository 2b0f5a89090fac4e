"""From the files that start an engine to the keys of a spec: command lines, manifests, flags.

Imported only where a spec names launch arguments, or a manifest is read.
"""
