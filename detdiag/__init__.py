"""detdiag: name the layer that made an LLM's output change, and show the counts that prove it."""

__version__ = "0.1.0"
