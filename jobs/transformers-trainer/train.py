"""Handwritten digits with the Trainer of Hugging Face Transformers: a tiny vision transformer that is made here, nothing is downloaded.

Started by torchrun, once per rank; the Trainer finds the other ranks by itself. Alone (`python train.py`) it trains in one process.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.02, help="learning rate of SGD (default 0.02)")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
TOLERANCE = 1e-4  # ranks add the gradients in another order than one process does

# 1,797 real digits of 8x8 pixels, in one shuffled order; an image is an item with the names that the model wants.
images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2022))
images = (torch.tensor(images, dtype=torch.float32) / 16).reshape(-1, 1, 8, 8)[order]
labels = torch.tensor(labels)[order]
items = [{"pixel_values": image, "labels": label} for image, label in zip(images, labels, strict=True)]
train, test = items[:1408], items[1408:]


def make_model():
    """Make a vision transformer of 2 layers, which reads an image as 16 patches; with the same weights in every process."""
    set_seed(args.seed)
    config = ViTConfig(
        image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config)


class Report(TrainerCallback):
    """Prints a line for each epoch, on the first rank."""

    def on_evaluate(self, arguments, state, control, metrics, **rest):
        if state.is_world_process_zero:
            print(f"epoch {metrics['epoch']:2.0f}  loss {metrics['eval_loss']:.3f}  accuracy {metrics['eval_accuracy']:.3f}", flush=True)


def accuracy_of(predictions):
    return {"accuracy": float((predictions.predictions.argmax(1) == predictions.label_ids).mean())}


model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
with tempfile.TemporaryDirectory() as output:
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=output, use_cpu=not torch.cuda.is_available(), seed=args.seed, num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size, per_device_eval_batch_size=96, dataloader_drop_last=True,
            max_grad_norm=0.0, train_sampling_strategy="sequential", ddp_find_unused_parameters=False,
            eval_strategy="epoch", save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
        ),
        train_dataset=train, eval_dataset=test[:384], compute_metrics=accuracy_of, callbacks=[Report()],
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)),
    )  # fmt: skip
    started = time.perf_counter()
    told = trainer.train()
    seconds = time.perf_counter() - started
    metrics = trainer.evaluate()
rank, world_size, device = trainer.args.process_index, trainer.args.world_size, trainer.args.device
mine = torch.nn.utils.parameters_to_vector(trainer.accelerator.unwrap_model(trainer.model).parameters()).detach().cpu()


def reference():
    """Train the same model in one process, without the Trainer: each of its batches holds those of all ranks."""
    model, size = make_model().to(device), args.batch_size * world_size
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for _ in range(args.epochs):
        for first in range(0, len(train) - size + 1, size):
            optimizer.zero_grad()
            part = slice(first, first + size)
            model(pixel_values=images[part].to(device), labels=labels[part].to(device)).loss.backward()
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


# Did all ranks train one network, and is it the one that one process would have trained?
everyone = [mine]
if world_size > 1:
    everyone = [None] * world_size
    dist.all_gather_object(everyone, mine)
difference, from_reference = (max((one - other).abs().max().item() for one in everyone) for other in (mine, reference()))
sys.stdout.write(f"rank {rank} of {world_size}  local rank {trainer.args.local_process_index}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
if rank == 0:
    result = {
        "accuracy": metrics["eval_accuracy"],
        "loss": told.training_loss,
        "epochs": args.epochs,
        "world_size": world_size,
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "reference_difference": from_reference,
        "samples_per_second": round(len(train) * args.epochs / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
if world_size > 1:
    dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
    dist.destroy_process_group()
os._exit(0 if difference == 0 and from_reference <= TOLERANCE else 1)  # a thread of Gloo can abort Python while it shuts down
