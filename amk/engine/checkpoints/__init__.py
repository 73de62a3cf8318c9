"""Where weights come from: files, hubs, random numbers."""
