"""The engine: gather a case from a folder or a live walk, and hand it to the verdict."""
