"""The content-addressed store of state files, and the manifests that list them."""
