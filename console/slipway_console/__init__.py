"""The console: pages about deployments, evidence, tenants and pools, in a browser, with the viewer's rights alone.

`access` calls the API server with the viewer's token, `views` are pure, `serving` has sessions, routes and streams.
It holds no rights and no state but sessions in memory: what a page shows is what the API server returned to its viewer.
"""
