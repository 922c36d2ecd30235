"""Proof that states are what they say: against the server's own words, a reference model, and one another."""
