"""Request outcomes of first attempts, counted for the operator's judge.

`outcome` follows one attempt to its end. `samples` counts outcomes by generation and revision, and `units` limits
what each session and each client adds. All of it is pure.
"""
