"""Puts questions to webhooks and keeps their answers; knows no Kubernetes and decides nothing."""
