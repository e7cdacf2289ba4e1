"""Engine profiles: how the container of each engine type runs.

`profile.py` has what a profile states, and there is one file for each type. A profile is a pure function of a revision.
The pod of a revision never changes: a new rendering of an existing type needs a new template version.
"""
