"""The API types, described once: CRDs, their reference and the parser are made of them.

`v1alpha1/` has the types. The modules here turn them into schemas and pages, and read and write objects.
A field of the API changes there and nowhere else.
"""
