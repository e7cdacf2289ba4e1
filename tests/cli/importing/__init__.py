"""Manifests of other tools, written from their documentation."""
