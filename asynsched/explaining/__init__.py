"""Why something does not happen, or has happened: the verdicts of the deciding code, put together for a person."""
