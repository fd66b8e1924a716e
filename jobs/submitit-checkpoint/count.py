"""A long piece of work that can be stopped and goes on where it was, as a class: called on the nodes by submit.py.

Started as it is, by `toolkit run jobs/submitit-checkpoint`, it works to its end in one go.
"""

import json
import os
import sys
import time

from submitit.helpers import DelayedSubmission


class Count:
    """Counts to ``end``. What the object holds when it is stopped, it holds when it goes on."""

    def __init__(self, end, pause):
        self.end, self.pause = end, pause
        self.done = 0
        self.began_at = []  # where each attempt began

    def __call__(self):
        self.began_at.append(self.done)
        while self.done < self.end:
            time.sleep(self.pause)  # a step of the work
            self.done += 1
            print(f"{self.done} of {self.end}, attempt {len(self.began_at)}, {os.uname().nodename}", flush=True)
        return {"done": self.done, "began_at": self.began_at}

    def checkpoint(self):
        """Called by submitit between two lines of the work, when the job is told to stop: what shall be called next time."""
        return DelayedSubmission(self)


if __name__ == "__main__":
    print(json.dumps(Count(int(sys.argv[1]), float(sys.argv[2]))()), flush=True)
