"""Families of decoders: every module of this folder is one, and its `graph` says what its models are."""
