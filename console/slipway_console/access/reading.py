"""Bodies of responses, up to a bound."""

import aiohttp


async def read_whole(response: aiohttp.ClientResponse, most_bytes: int) -> bytes | None:
    """The body; None where it has more than `most_bytes`, of which no more is read then."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            response.close()
            return None
    return bytes(body)
