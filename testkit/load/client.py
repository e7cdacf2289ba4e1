"""What every client of a load sends and reads."""

REVISION = "X-Slipway-Revision"
# A placeholder that the gateway knows as one: a real key would tie all requests to one revision.
API_KEY = "none"
PROMPTS = (
    "In the beginning",
    "And it came to pass",
    "Blessed are they that",
    "The king said unto him",
    "Hear, O Israel:",
    "And the word of the LORD came",
    "Who is like unto thee",
    "Behold, I send",
)
