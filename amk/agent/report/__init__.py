"""A run for its reader: live, as HTML, as a table."""
