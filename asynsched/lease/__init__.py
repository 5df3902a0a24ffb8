"""The lease of a scheduler: its exclusive right to its runs. When the lease expires, others take the runs over.

`expiry.py` is the model of time. `held_lease.py` acquires, holds and releases a lease. `renewal.py` renews it.
`takeover.py` watches the leases of other schedulers and frees the runs of those that are gone. `keeper_line.py` tells
the keeper when its tries must end. The fence is the lease's epoch, which every guarded update compares
(`store/runs/transitions.py`).

docs/discussion/lease.md explains it, with a timeline.
"""
