"""What happens before what: greedy run, clocks, order within and between CTAs."""
