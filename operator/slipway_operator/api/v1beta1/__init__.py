"""slipway.dev/v1beta1: the names that are kept. It differs from v1alpha1, which is stored, by a few fields.

`differences` lists them, and makes objects of one version those of the other. `schema` makes the schema of v1beta1 from
that of v1alpha1, so that a field is described once.
"""
