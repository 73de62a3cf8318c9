"""Who suggests what to try next. One module per proposer; none keeps state outside the journal."""
