"""One module a command. Each defines ``register(app)``; heavy imports stay inside functions."""
