"""Handwritten digits with Lightning and FSDP2: each rank holds a part of every parameter, its gradient and its optimizer state.

Lightning's ModelParallelStrategy gives the device mesh; configure_model says what is sharded. Lightning's older "fsdp" needs a GPU.
"""

import argparse
import json
import os
import socket
import sys
import time

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from sklearn.datasets import load_digits
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.01, help="learning rate of SGD (default 0.01)")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
TOLERANCE = 1e-4  # ranks add the gradients in another order than one process does

# Lightning refuses to start where these numbers are not those of the job, so they are taken from it: the file suits every size.
world_size, local_size = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))


def make_network():
    """Make a small transformer that reads an image as eight rows of eight pixels, with the same weights in every process."""
    torch.manual_seed(args.seed)
    blocks = [torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)]
    return torch.nn.Sequential(torch.nn.Linear(8, 64), *blocks, torch.nn.Flatten(), torch.nn.Linear(8 * 64, 10))


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = make_network()

    def configure_model(self):
        for block in self.network[1:3]:
            fully_shard(block, mesh=self.device_mesh["data_parallel"])  # gathered when it is its turn, and let go after it
        fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        right = (self.network(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def on_train_epoch_end(self):
        if self.global_rank == 0:
            told = self.trainer.callback_metrics
            print(f"epoch {self.current_epoch + 1:2d}  loss {told['loss']:.3f}  accuracy {told['accuracy']:.3f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=args.lr, momentum=0.9)


images, labels = load_digits(return_X_y=True)  # 1,797 real digits of 8x8 pixels, split in the same way on every rank
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 8, 8), torch.tensor(labels))
train, test, _ = random_split(digits, [1408, 384, 5], generator=torch.Generator().manual_seed(2022))

os.environ["PL_GLOBAL_SEED"] = str(args.seed)  # of the shuffle; Lightning gives the loader a DistributedSampler
trainer = L.Trainer(
    max_epochs=args.epochs, accelerator="auto", devices=local_size, num_nodes=world_size // local_size,
    strategy=ModelParallelStrategy(data_parallel_size=world_size, tensor_parallel_size=1),
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
)  # fmt: skip
model, started = Digits(), time.perf_counter()
trainer.fit(model, DataLoader(train, args.batch_size, shuffle=True, drop_last=True), DataLoader(test, 96))
seconds = time.perf_counter() - started
for module in model.modules():
    if isinstance(module, FSDPModule):
        module.reshard()  # the last validation left some parameters gathered
held = sum(parameter.to_local().numel() for parameter in model.parameters())
mine = torch.cat([parameter.full_tensor().detach().flatten() for parameter in model.parameters()]).cpu()


def reference():
    """Train the same network in one process, without Lightning: each of its batches holds those of all ranks."""
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(args.seed + epoch))
        for batch in order.split(args.batch_size * world_size)[: len(train) // (args.batch_size * world_size)]:
            x, y = train[batch.tolist()]
            optimizer.zero_grad()
            functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach()


# Did all ranks train one network, and is it the one that one process would have trained?
everyone = [None] * world_size
dist.all_gather_object(everyone, mine)
difference, from_reference = (max((one - other).abs().max().item() for one in everyone) for other in (mine, reference()))
sys.stdout.write(f"rank {trainer.global_rank} of {world_size}  host {socket.gethostname()}  device {trainer.strategy.root_device}  holds {held} of {len(mine)} parameters\n")
sys.stdout.flush()
if trainer.global_rank == 0:
    result = {
        "accuracy": trainer.callback_metrics["accuracy"].item(),
        "loss": trainer.callback_metrics["loss"].item(),
        "epochs": args.epochs,
        "world_size": world_size,
        "share_of_parameters": round(held / len(mine), 3),
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "reference_difference": from_reference,
        "samples_per_second": round(len(train) * args.epochs / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
os._exit(0 if difference == 0 and from_reference <= TOLERANCE else 1)  # a thread of Gloo can abort Python while it shuts down
