"""A ModelDeployment in its decided form.

Durations in seconds, a strategy as a list of steps, defaults filled in. The API types are in `api/v1alpha1/`.
A manifest as it was applied and the names of all fields are here for messages about them.
"""
