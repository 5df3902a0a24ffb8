"""What the kernel is asked to forbid a parse, and what a parse may still use."""
