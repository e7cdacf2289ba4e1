//! What a tenant may use and has used: twins of the gateway's `quotas/`.
