"""Two DAGs connected only by an asset: one updates it, and the other runs after each update.

Needs:   nothing.
Runs:    `export_orders` once; `report_orders` as soon as `export_orders` has updated the asset, and again after each
         `asynsched assets event orders`.
Prints:  `3 orders are in orders.csv` in the log of `report`.
"""

from datetime import datetime

from asynsched import DAG, Asset, task

ORDERS = Asset("orders", uri="file:///srv/orders.csv")

with DAG("export_orders", schedule="@once", start_date=datetime(2026, 1, 1), tags=["example"]) as export_orders:

    @task(outlets=[ORDERS])
    def export(*, outlet_events):
        # The event carries this to the DAGs that wait for it.
        outlet_events[ORDERS].extra = {"file": "orders.csv", "rows": 3}

    export()

with DAG("report_orders", schedule=[ORDERS], tags=["example"]) as report_orders:

    @task
    def report(*, triggering_asset_events):
        for event in triggering_asset_events.get(ORDERS, []):
            print(f"{event.extra.get('rows', 'some')} orders are in {event.extra.get('file', event.uri)}")

    report()

if __name__ == "__main__":
    export_orders.test()
