"""Responses that a gateway keeps, for requests that equal an earlier one.

What a key is, what may be kept and what a client may demand is pure. Stores keep entries, in memory or at Redis, and
`caches` joins both with the requests: a look-up before the limits, one computation for equal requests, a replay.
"""
