"""The database: tables, migrations, ways to open it, and one module of named queries per table."""
