"""Manifests of other tools as ModelDeployments (pure): what maps, and by name what does not.

`fields` reads a stranger's manifest within bounds and remembers what was read; one module for each tool converts;
`convert` chooses it; `manifest` writes the result, with what did not map as comments.
"""
