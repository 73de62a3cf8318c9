"""Certificates and systems in the forms that others read."""
