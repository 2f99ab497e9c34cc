"""Reading, caching and sharding data."""
