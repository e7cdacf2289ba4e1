"""URLs that users write; pure."""

from yarl import URL


def read_url(text: str, most_characters: int) -> URL:
    """An absolute http or https URL without credentials.

    Raises:
        ValueError: what is wrong with it, in words for users.
    """
    if len(text) > most_characters:
        raise ValueError(f"the URL is longer than {most_characters} characters")
    if not text.startswith(("http://", "https://")):
        raise ValueError("the URL must start with http:// or https://")
    try:
        url = URL(text)
        host, port = url.host, url.port
    except (ValueError, TypeError) as error:
        raise ValueError("the URL is not valid") from error
    if not host or not port:
        raise ValueError("the URL is not valid: it names no host, or port 0")
    if url.user is not None or url.password is not None:
        raise ValueError("the URL holds credentials before its host: take them out; a header can come from a Secret")
    return url
