"""What a broker tells about itself. Leaves: nothing here imports the server."""
