"""s3://, gs:// and az://: the files under a prefix of an object store.

`location` and `access` say where it is, `store` opens it behind `proxy`, `listing` chooses, `download` gets the parts.
"""
