"""Stop the count in its middle, as Slurm does before it takes a node for another job, and see it go on from there.

Run it where jobs are submitted from: python submit.py [IMAGE]
"""

import sys
import time

from count import Count

import toolkit

image = sys.argv[1] if len(sys.argv) > 1 else "pytorch_cpu"
job = toolkit.submit(Count(end=10, pause=1.0), image=image, time="01:00:00")

while "3 of 10" not in (job.stdout() or ""):
    if job.done():
        sys.exit(f"it ended before it had counted to 3: {job.state}\n{job.stdout()}")
    time.sleep(0.5)
job.interrupt()
print("interrupted; it saves itself, goes back into the queue, and starts again when Slurm says so")

print(job.result())
