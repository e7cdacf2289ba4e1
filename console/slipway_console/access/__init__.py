"""Calls to the API server, each with the token of its viewer.

`api_server` sends them within bounds of time, bytes and number; `refusal` turns what comes back into sentences.
The console has no credentials of its own, so that no call is made with more rights than its viewer has.
"""
