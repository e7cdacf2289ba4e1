"""The ledger, against SQLite and a real PostgreSQL."""
