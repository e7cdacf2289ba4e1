"""Mirrored requests: copies that a revision under test gets and no client sees.

`queue` bounds and runs them. `shadow_request` prepares one; `transcript` and `scoring` compare its response with
stable's.
"""
