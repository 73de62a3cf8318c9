"""Files of other projects as systems: see README.md here. Their semantics are encoded anew; no code of theirs is here.

Errors: AMK005 at the JSON pointer of what is not as expected; AMK205 for what has no counterpart in a system.
"""
