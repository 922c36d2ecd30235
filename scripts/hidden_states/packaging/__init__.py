"""Packaged datasets: the files a trainer reads, made from tokens, manifests and the store of states."""
