"""Whether a certificate proves a system with loops safe for every number of laps: README.md.

Shares no code with what decides (`amk.systems.open_loop`, the validator); it reads the file's JSON by itself.
"""
