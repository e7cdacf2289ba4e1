"""Decided forms: what the API types become before anything is planned, and what plans consist of. Pure data.

`cluster/` is above `analysis/` and this above `deployment/`; the modules beside them are used by all: names of labels
and children, quantities, JSON.
"""
