"""SQL-Retrieval Augmented Generation inside PostgreSQL."""

__version__ = "0.1.0"
