"""Files, batches and jobs: keeps requests in a database and sends them through the gateway when there is room."""
