"""A plugin that cannot be imported."""

raise RuntimeError("the licence server did not answer")
