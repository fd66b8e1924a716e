"""The same function without a job script: called from Python, on the nodes, in the image, and what it returns comes back.

Run it where jobs are submitted from: python submit.py [IMAGE]
"""

import sys

from add import add

import toolkit

image = sys.argv[1] if len(sys.argv) > 1 else "pytorch_cpu"

job = toolkit.submit(add, 5, 7, image=image, time="00:05:00")
print("job", job.job_id, "is", job.run.name)
print(job.result())

# Every task calls the function; their results come back as a list.
tasks = toolkit.submit(add, 5, 7, image=image, ntasks_per_node=3, time="00:05:00")
print(tasks.results())

# What goes wrong there is raised here, with the traceback from there.
wrong = toolkit.submit(add, 5, "7", image=image, time="00:05:00")
try:
    wrong.result()
except Exception as error:
    print(next(line for line in str(error).splitlines() if "TypeError" in line))
