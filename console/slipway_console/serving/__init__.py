"""Sessions, routes, actions and streams: HTTP on one side, calls with the viewer's token on the other.

`sessions` keeps tokens in memory, `guard` is around every request, `pages` reads and renders, `actions` patches,
`streams` keeps open pages up to date, `app` puts them together.
"""
