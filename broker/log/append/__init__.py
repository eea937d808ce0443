"""What an append must pass before anything of it is written, one file per generation."""
