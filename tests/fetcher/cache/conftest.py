"""The servers of the fetcher's tests."""

from tests.fetcher.conftest import authority, https, site

__all__ = ["authority", "https", "site"]
