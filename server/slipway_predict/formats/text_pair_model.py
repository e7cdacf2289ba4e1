"""Hugging Face's rerankers (cross-encoders): one score for a query and a document."""

from pathlib import Path

from . import text_model


def load(path: Path, threads: int) -> text_model.TextClassifier:
    return text_model.loaded_classifier(path.parent, threads, pairs=True)
