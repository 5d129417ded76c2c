"""The keys' files and batches at providers, and the batches that are not settled yet."""
