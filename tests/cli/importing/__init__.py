"""Manifests of other tools, written anew from their documentation."""
