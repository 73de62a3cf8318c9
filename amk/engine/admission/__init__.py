"""What stops a kernel that was not proved."""
