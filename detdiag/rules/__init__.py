"""Config knowledge as data (one YAML file a surface) and the small evaluator that reads it."""
