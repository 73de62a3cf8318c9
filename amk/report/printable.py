"""Text that may quote hostile input, made safe to show on one line."""

MAX_TEXT = 2000  # characters of one message or fact; a longer one quotes input, and its head says enough


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """`text` on one line without control characters or lone surrogates, cut at `limit` characters."""
    cut = text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
