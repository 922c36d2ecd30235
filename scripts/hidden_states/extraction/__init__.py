"""The client: computes what the store lacks of a chunk, whatever the server and the machine do meanwhile."""
