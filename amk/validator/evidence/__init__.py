"""From a finding to a run of the flat system that shows it, and its explanation."""
