"""Nouns that every layer shares: topics and partitions, error codes, config definitions. No I/O."""
