"""Live probes of a local model, one file a layer; the engine walks them in the order of LAYERS."""
