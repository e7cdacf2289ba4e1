"""The matrix of missing objects against a real API server, with a real operator and a real gateway.

`cells` lists what is damaged in which phase, `phases` brings a ModelDeployment there, `damages` does the damage,
`recorder` holds each version of the objects against what may be, `world` runs many cells in one namespace.
"""
