"""What only a GPU shows: `make test-gpu`. It takes the host's Python with torch, and no network."""
