"""Models that embed text and extract events and entities from it."""
