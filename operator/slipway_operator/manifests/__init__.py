"""Manifests of the objects that the operator owns, one module per kind.

Pure functions from decided values to dictionaries.
The rendering of a revision's pods has a version, so an upgrade of the operator restarts none.
"""
