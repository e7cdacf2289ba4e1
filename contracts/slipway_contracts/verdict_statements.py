"""The signed statement about the verdict on a revision: where it is kept, and the names of its parts.

It is an in-toto Statement v1 in a DSSE envelope, as JSON text without spaces. docs/verdicts.md describes its predicate.
"""

ANNOTATION = "slipway.dev/verdict"  # of the revision's ControllerRevision
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slipway.dev/attestations/rollout-verdict/v1"
MOST_BYTES = 5000  # of an envelope: what every storage backend of MLflow has room for in a tag
# Of a statement before it is signed: base64 makes four bytes of three, and the rest of an envelope has 256.
MOST_PAYLOAD_BYTES = (MOST_BYTES - 256) // 4 * 3
