"""A function, and the smallest script around it: the job that `toolkit run jobs/submitit-add` starts, as a batch script by hand would."""

import json


def add(a, b):
    return a + b


if __name__ == "__main__":
    print(json.dumps({"sum": add(5, 7)}), flush=True)
