"""ModelPools: their pods, the file of their entries, and what pods say of them.

`runner` makes pods and file and writes the status, `writing` bounds how often, `members` finds the entries, `reports`
reads pods, `serving` adds what is known of pools to what the reconciles of members observe.
"""
