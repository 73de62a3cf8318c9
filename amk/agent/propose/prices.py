"""What tokens cost, in dollars per million, as an upper bound; list prices of the provider, standard tier.

A model that is not listed needs its price on the command line: a budget in dollars means nothing without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from amk.report.diagnostic import AmkError, Diagnostic

CACHE_WRITE = 1.25
CACHE_READ = 0.1


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float

    def bound(self, input_tokens: int, output_tokens: int) -> float:
        """The most that a request can cost: all of its input written to the cache, all output used."""
        return (input_tokens * self.input * CACHE_WRITE + output_tokens * self.output) / 1e6

    def cost(self, plain: int, written: int, read: int, output: int) -> float:
        """Cost of tokens read plainly, written to the cache, read from it, and produced."""
        inputs = plain + written * CACHE_WRITE + read * CACHE_READ
        return (inputs * self.input + output * self.output) / 1e6


PRICES = {
    "claude-opus-4-5": Price(5.0, 25.0),
    "claude-opus-4-1": Price(15.0, 75.0),
    "claude-sonnet-4-5": Price(3.0, 15.0),
    "claude-haiku-4-5": Price(1.0, 5.0),
}


def price_of(model: str, text: str | None = None) -> Price:
    """The price of `model`: `text` as "IN/OUT", else the table's (a dated name counts as its family); AMK706."""
    if text is not None:
        try:
            first, second = (float(part) for part in text.split("/"))
        except ValueError:
            first = second = -1.0
        if not (0 <= first < 1e5 and 0 <= second < 1e5):
            raise AmkError(Diagnostic("AMK706", f"'{text[:40]}' is not a price: give IN/OUT in dollars per 1M tokens"))
        return Price(first, second)
    for name, price in PRICES.items():
        if model == name or model.startswith(f"{name}-2"):
            return price
    message = f"the price of '{model[:80]}' is not known, so a budget in dollars cannot be kept"
    raise AmkError(Diagnostic("AMK706", message, help="give --llm-price IN/OUT in dollars per million tokens"))
