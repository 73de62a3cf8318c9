"""What a schedule and a decoder layer compute, in numpy; what memory holds before the first launch."""
