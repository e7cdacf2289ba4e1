"""oci://: a model in a registry, as an artefact with a layer for each file or as an image with files below /models.

`reference` says what a URI names, `registry` speaks to it, `manifest` reads what it has, `pulling` is the whole way.
"""
