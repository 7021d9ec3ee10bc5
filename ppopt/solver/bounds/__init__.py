"""Lower bounds, each with a certificate that the re-checker can check."""
