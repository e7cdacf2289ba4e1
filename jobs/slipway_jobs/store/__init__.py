"""The database of files and batches, SQLite or PostgreSQL.

`tables` has its shape, `database` opens it, `file_store`, `batch_store` and `line_store` read and write,
`key_store` has the keys of requests that are sent again, `slices` deletes rows. All calls block:
`database.Database.call` runs them in threads.
"""
