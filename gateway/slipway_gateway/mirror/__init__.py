"""Shadow traffic: copies of requests that stable answered go to the revision under test, and never to a client."""
