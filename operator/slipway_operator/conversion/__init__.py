"""The conversion webhook: objects of v1alpha1 as those of v1beta1, and back, for the API server.

`review` (pure) answers a ConversionReview; `app` and `server` serve it, at the operator that holds the lease and at
those that stand by; the one that holds it names the webhook in the CRDs (`kube/writing/conversion_webhook.py`).
"""
