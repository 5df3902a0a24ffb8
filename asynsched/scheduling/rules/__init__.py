"""The pure decisions: plain values in, a verdict with its reason out. One file a rule; no database, no event loop."""
