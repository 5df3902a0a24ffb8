"""What people ask of runs that exist: clear, mark, cancel."""
