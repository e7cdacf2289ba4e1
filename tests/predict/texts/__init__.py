"""Tests of rerankers and of classifiers of texts."""
