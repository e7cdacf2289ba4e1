"""ModelAdapters: the file by which pods of a ModelDeployment load them, and what the pods report of them.

`runner` writes the file and reads pods, `members` finds the revisions, `reports` reads one pod, `serving` adds what is
known to what the reconciles of adapters and of their ModelDeployments observe.
"""
