"""A search put together: loop, session, stored runs."""
