"""What several tests need: real schedulers as processes, a virtual clock, a scripted executor, a PostgreSQL server."""
