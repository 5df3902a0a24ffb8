"""Cron expressions in plain English."""


def describe(expression: str, n_fields: int) -> str:
    """Return a sentence for a cron expression; empty when it has more than five fields, or is too odd to describe.

    When both the day of the month and the day of the week are given, either of them is enough: the sentence says so.

    Source:
        Airflow's descriptions, which leave out six fields because libraries disagree about their order.
    """
    fields = expression.split()
    if n_fields > 5 or len(fields) != 5:
        return ""
    minute, hour, day, month, weekday = fields
    if day == "*" or weekday == "*":
        return _sentence(expression)
    by_day = _sentence(f"{minute} {hour} {day} {month} *")
    by_weekday = _sentence(f"{minute} {hour} * {month} {weekday}")
    return f"{by_day} (or) {by_weekday}" if by_day and by_weekday else ""


def _sentence(expression: str) -> str:
    from cron_descriptor import (
        CasingTypeEnum,
        ExpressionDescriptor,
        FormatException,
        MissingFieldException,
        WrongArgumentException,
    )

    try:
        descriptor = ExpressionDescriptor(expression, casing_type=CasingTypeEnum.Sentence, use_24hour_time_format=True)
        return str(descriptor.get_description())
    except (FormatException, MissingFieldException, WrongArgumentException, ValueError):
        return ""
