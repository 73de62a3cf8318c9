"""From a request to its answer: options, restrictions, guesses, streams, scores."""
