"""What becomes of real conversations with each chat template, and whether two ways to compute the mask agree."""
