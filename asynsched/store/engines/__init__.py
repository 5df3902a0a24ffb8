"""Ways to open the database: SQLite and PostgreSQL, on an event loop or without one, at the newest schema."""
