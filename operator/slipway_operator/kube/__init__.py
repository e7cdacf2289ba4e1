"""The only room that talks to the Kubernetes API: reads become Observed, a Plan becomes writes."""
