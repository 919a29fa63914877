"""Search in conversations, an optional wing (extra `search`); the core may not import it."""
