"""Who sends a request: a pure decision from its headers and the table of tenants.

`tenants` reads Tenants, `api_keys` is the format of keys, `authenticate` decides. Nothing here reads a clock or a file.
"""
