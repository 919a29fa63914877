"""Passages and grounded answers for applications, an optional wing (extra `answer`); the core may not import it."""
