"""Headers of Slipway's own, by which its processes describe a request to one another.

docs/contracts.md says what each of them means, who sets it and who drops it.
"""

PREFIX = "x-slipway-"  # of all of them, in lower case

# Gateway → client.
REVISION = "X-Slipway-Revision"
ROUTE = "X-Slipway-Route"  # rules of ModelRoutes that chose the deployment; only the gateway sets it
FEEDBACK = "X-Slipway-Feedback"  # token of a response; only the gateway sets it
FALLBACK = "X-Slipway-Fallback"  # which deployment did not answer, and why; only the gateway sets it
DEGRADED = "X-Slipway-Degraded"  # what the response has less of under load; only the gateway sets it
CACHE = "X-Slipway-Cache"  # hit, miss or bypass, of a route with a cache; only the gateway sets it

# Gateway → server: whose request it is, and how urgent. The gateway drops a client's own.
TENANT = "X-Slipway-Tenant"
PROOF = "X-Slipway-Tenant-Proof"  # signature of the tenant, made when a request is sent
WEIGHT = "X-Slipway-Tenant-Weight"  # of the tenant; signed like the tenant, and absent where it is 1
PRIORITY_LIMIT = "X-Slipway-Priority-Limit"  # the most urgent priority that a client may request
SHADOW = "X-Slipway-Shadow"  # marks mirrored requests

# Gateway ↔ server: streams that outlive their server. A client, too, sends the first one, and gets none of the others.
RESUMABLE = "X-Slipway-Resumable"
STREAM = "X-Slipway-Stream"
RESUME = "X-Slipway-Resume"
RESUME_BYTES = "X-Slipway-Resume-Bytes"
RETURNS = "X-Slipway-Returns"
RECOMPUTES = "X-Slipway-Recomputes"  # the whole answer is generated again, and charged again
PROMPT_TOKENS = "X-Slipway-Prompt-Tokens"  # what a stream costs that its client leaves before its end

# Gateway ↔ jobs: see `passes`.
JOBS_TENANT = "X-Slipway-Jobs-Tenant"
JOBS_PASS = "X-Slipway-Jobs-Pass"

# Operator → webhook.
SIGNATURE = "X-Slipway-Signature"
