"""What went in: canonical requests and the diffs of bytes, JSON and token ids. No torch."""
