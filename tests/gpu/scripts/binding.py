"""Each rank prints the GPU that is its own."""

import json
import os

import torch

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.cuda.get_device_properties(local_rank)
right = bool((torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda") == 64).all())
print(
    "BOUND "
    + json.dumps({"rank": int(os.environ["RANK"]), "uuid": str(device.uuid), "right": right}),
    flush=True,
)
