"""ModelPools: their pods, the file of their entries, and what pods say of them.

`runner` makes pods and file and writes the status, `members` finds the entries, `reports` reads pods, `serving` gives
the reconciles of members what is known.
"""
