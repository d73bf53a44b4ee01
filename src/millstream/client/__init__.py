"""What applications use."""
