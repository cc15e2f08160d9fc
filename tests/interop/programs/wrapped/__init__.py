"""Command line clients behind wrappers, which read their output and logs and print the story's lines."""
