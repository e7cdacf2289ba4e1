"""The Expect header: aiohttp's own handler repeats it in a text, which fails for bytes that are no text (500)."""

from aiohttp import web


async def is_met(request: web.Request) -> bool:
    """Answers `100-continue`, the only expectation of RFC 9110 (section 10.1.1); false for any other, unanswered."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return False
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0
    return True
