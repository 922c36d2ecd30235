"""How fast the server prefills with the capture and without it, driven by the product's own client."""
