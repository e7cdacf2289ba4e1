"""How many pods demand needs: what a pod of a revision carries, what will arrive, and the number that follows; pure.

Loads are in tokens per second of work: generated tokens, and those of prompts by what they cost (`step_fit.py`). For
classic models, which have no tokens, they are requests per second. Times are seconds of one clock that the caller has.
"""
