"""A TaskFlow ETL: CSV files into a SQLite database.

The DAG reads the two files in `data/` beside this file, joins them, and loads the sales of each country into the table
`sales_by_country`. The database is `asynsched-examples/sales.db` in the temporary directory (`$TMPDIR`, else `/tmp`),
or the file named by the param `database`. Loading again replaces the table's rows.

Needs:   nothing.
Runs:    once, as soon as the scheduler finds the file.
Prints:  `4 countries, 570.00 in all` and the path of the database, in the log of `report`.
"""

import csv
import sqlite3
import tempfile
from contextlib import closing
from datetime import datetime
from pathlib import Path

from asynsched import Param, dag, get_current_context, task

DATA = Path(__file__).parent / "data"


def read_csv(name):
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def database_path():
    named = get_current_context()["params"]["database"]
    return Path(named) if named else Path(tempfile.gettempdir(), "asynsched-examples", "sales.db")


@dag(
    schedule="@once",
    start_date=datetime(2026, 1, 1),
    tags=["example"],
    params={"database": Param(None, type=["null", "string"], description="SQLite file to load into")},
)
def sales_etl():
    @task
    def extract_customers():
        return {row["customer_id"]: row["country"] for row in read_csv("customers.csv")}

    @task
    def extract_orders():
        return read_csv("orders.csv")

    @task
    def transform(customers, orders):
        cents = {}
        for order in orders:
            country = customers.get(order["customer_id"])
            if country is None:
                print(f"order {order['order_id']}: unknown customer {order['customer_id']}, left out")
                continue
            cents[country] = cents.get(country, 0) + round(float(order["amount"]) * 100)
        return {country: amount / 100 for country, amount in sorted(cents.items())}

    @task
    def load(sales):
        path = database_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS sales_by_country (country TEXT PRIMARY KEY, amount REAL)")
            connection.execute("DELETE FROM sales_by_country")
            connection.executemany("INSERT INTO sales_by_country VALUES (?, ?)", sales.items())
        return str(path)

    @task
    def report(path):
        with closing(sqlite3.connect(path)) as connection:
            countries, amount = connection.execute("SELECT count(*), sum(amount) FROM sales_by_country").fetchone()
        print(f"{countries} countries, {amount:.2f} in all: {path}")
        return {"countries": countries, "amount": round(amount, 2)}

    report(load(transform(extract_customers(), extract_orders())))


etl = sales_etl()

if __name__ == "__main__":
    etl.test()
