"""Who made which file and batch at a provider, and which batches are still to be settled."""
