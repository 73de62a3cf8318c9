"""GPUs as data: limits, rates, and the targets that are shipped."""
