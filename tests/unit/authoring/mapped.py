"""Tasks and an operator to be mapped."""

import datetime as dt

from asynsched import BaseOperator, task

DATE = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


@task
def give(value):
    return value


@task
def echo(x, y=None):
    return [x, y]


@task
def listed(xs):
    return list(xs)


class Shout(BaseOperator):
    template_fields = ("text",)

    def __init__(self, *, text, times=1, **kwargs):
        super().__init__(**kwargs)
        self.text, self.times = text, times

    def execute(self, context):
        return self.text * self.times
