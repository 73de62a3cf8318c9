"""Verified fixes: small edits of a schedule that turn UNSAFE or UNKNOWN into SAFE."""
