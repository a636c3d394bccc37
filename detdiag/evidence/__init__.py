"""What was seen: observations, findings, cases and the append-only record. No torch, no pandas."""
