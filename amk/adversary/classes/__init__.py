"""The 44 classes of mistakes, each a generator of mutants of real plans, safe and unsafe ones alike.

A generator draws close calls on both sides of the line and never says which side a mutant is on: the oracle does.
"""
