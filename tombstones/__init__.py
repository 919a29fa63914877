"""Everything that alters what a task store holds; it knows SQLAlchemy and nothing of HTTP."""
