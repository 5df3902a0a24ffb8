"""Which services a scheduler has, and how they are connected."""
