"""Every edit of a schedule's text, derived from the JSON Schema and the file; what the verdicts on them are worth."""
