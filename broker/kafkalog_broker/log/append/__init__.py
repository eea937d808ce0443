"""What an append must pass before it is written, one file per generation; and a log's producers."""
