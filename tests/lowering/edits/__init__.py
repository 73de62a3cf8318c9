"""Edits of the device code by rule, and what finds each."""
