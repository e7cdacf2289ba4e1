"""Clients of OpenAI's API as people install them, in an environment of their own: some need what ours does not have."""
