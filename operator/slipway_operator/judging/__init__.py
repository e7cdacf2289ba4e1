"""The judge decides whether the canary is worse than stable.

Pure mathematics on counts, for one canary or ten thousand at once.
`verdict.py` is its entry; docs/judge.md explains the statistics.
"""
