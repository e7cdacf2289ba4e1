"""Kept responses: keys, stores, and a real gateway that has them."""
