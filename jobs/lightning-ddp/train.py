"""Handwritten digits with Lightning: the network is a LightningModule, and the Trainer does the loop, the ranks and DDP.

Under Slurm, Lightning wants one task for each device, and reads the numbers of the tasks by itself; it also takes over those of torchrun.
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
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate of SGD (default 0.05)")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
TOLERANCE = 1e-4  # ranks add the gradients in another order than one process does

# Lightning refuses to start where these numbers are not those of the job, so they are taken from it: the file suits every size.
world_size, local_size = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)  # sync_dist: the mean of all ranks
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
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test, _ = random_split(digits, [1408, 384, 5], generator=torch.Generator().manual_seed(2022))

trainer = L.Trainer(
    max_epochs=args.epochs, accelerator="auto", devices=local_size, num_nodes=world_size // local_size, strategy="ddp",
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
)  # fmt: skip
os.environ["PL_GLOBAL_SEED"] = str(args.seed)  # of the shuffle; Lightning gives the loader a DistributedSampler
torch.manual_seed(args.seed + trainer.global_rank)  # it differs by rank on purpose: DDP sends rank 0's network to all
model = Digits()
started = time.perf_counter()
trainer.fit(model, DataLoader(train, args.batch_size, shuffle=True, drop_last=True), DataLoader(test, 96))
seconds = time.perf_counter() - started
mine = torch.nn.utils.parameters_to_vector(model.parameters()).detach().double().cpu()


def reference():
    """Train the same network in one process, without Lightning: each of its batches holds those of all ranks."""
    torch.manual_seed(args.seed)
    network = Digits().network
    optimizer = torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(args.seed + epoch))
        for batch in order.split(args.batch_size * world_size)[: len(train) // (args.batch_size * world_size)]:
            x, y = train[batch.tolist()]
            optimizer.zero_grad()
            functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach().double()


# Did all ranks train one network, and is it the one that one process would have trained?
everyone = trainer.strategy.all_gather(mine.to(trainer.strategy.root_device)).reshape(world_size, -1).cpu()
difference, from_reference = ((everyone - other).abs().max().item() for other in (everyone[0], reference()))
sys.stdout.write(f"rank {trainer.global_rank} of {world_size}  host {socket.gethostname()}  device {trainer.strategy.root_device}\n")
sys.stdout.flush()
if trainer.global_rank == 0:
    result = {
        "accuracy": trainer.callback_metrics["accuracy"].item(),
        "loss": trainer.callback_metrics["loss"].item(),
        "epochs": args.epochs,
        "world_size": world_size,
        "environment": type(trainer.strategy.cluster_environment).__name__,
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
