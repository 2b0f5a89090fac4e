"""The deployment spec: schema, structuring, and the place of every key and value in the text."""
