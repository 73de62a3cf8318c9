"""Prompts by torch's matrix products, into the cache of a schedule's engine. The only part of amk that computes with
torch; imported where torch is there and a long prompt is to be read."""
