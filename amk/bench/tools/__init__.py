"""What every measurement uses: clocks, floors, errors, weights."""
