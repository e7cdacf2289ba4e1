"""Input files of batches that are objects of S3, read with the credentials that an administrator listed for the tenant.

`listed.py` has the list and what a request names, `signing.py` signs a request (both pure but for the file), and
`reading.py` reads an object, within its bounds and as one version.
"""
