"""Why a tool does not do what was asked."""


class RefusedError(ValueError):
    """A tool does not do what was asked; the message says why, to whoever asked."""
