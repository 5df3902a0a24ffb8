"""A sweep of parameters: the steps around it run on the scheduler's machine, its parts in one job array of Slurm.

Needs:   the settings of ../asynsched.toml, with the partition of a cluster.
Runs:    when it is triggered.
Prints:  `the best is 3` in the log of `best`.
"""

from asynsched import dag, task


@dag(schedule=None, tags=["example"])
def sweep():
    @task
    def parameters():
        return [1, 2, 3, 4]

    @task(executor="slurm", executor_config={"mem": "100M", "time": "0:10:00"})
    def simulate(parameter):
        return {"parameter": parameter, "error": abs(parameter - 3)}

    @task
    def best(results):
        print(f"the best is {min(results, key=lambda result: result['error'])['parameter']}")

    best(simulate.expand(parameter=parameters()))


sweep_dag = sweep()

if __name__ == "__main__":
    sweep_dag.test()
