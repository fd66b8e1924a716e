"""Handwritten digits with Horovod and TensorFlow: a script for one GPU, and the five steps (numbered below) that make it one for many.

Started once per rank by srun, mpirun or horovodrun; hvd.init() finds out which rank it is and how many there are.
"""

import argparse
import json
import socket
import sys
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate of SGD for one rank (default 0.05)")
parser.add_argument("--checkpoint", default="", metavar="FILE", help="where rank 0 saves the network after each epoch")
args = parser.parse_args()

# Step 1: initialise Horovod.
hvd.init()
rank, world_size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()

# Step 2: pin a GPU to each rank of a node; without GPUs, the same script runs on CPUs.
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[local_rank], "GPU")

# 1,797 real digits of 8x8 pixels, split in the same way on every rank; then each rank takes its own part of the first, all equal in length.
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(2022).permutation(len(labels))
images, labels = (images[order] / 16).astype("float32"), labels[order]
share = 1437 // world_size
mine = slice(rank * share, (rank + 1) * share)
batches = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine])).shuffle(share, seed=rank).batch(args.batch_size)
test_images, test_labels = images[1437:], labels[1437:]

# The seed differs by rank on purpose: without step 4 the ranks would train different networks.
tf.random.set_seed(rank)
layers = [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(10)]
network = tf.keras.Sequential(layers)

# Step 3: scale the learning rate by the number of ranks; the gradients are averaged over all ranks in `step`.
optimizer = tf.keras.optimizers.SGD(args.lr * world_size, momentum=0.9)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, network(x, training=True))
    tape = hvd.DistributedGradientTape(tape)  # here Horovod waits for the averages of all ranks
    gradients = tape.gradient(loss, network.trainable_variables)
    optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    return loss


# Step 4: broadcast the state of rank 0, so that all ranks start with the same network.
hvd.broadcast_variables(network.variables, root_rank=0)

started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    losses = [float(step(x, y)) for x, y in batches]
    accuracy = float(np.mean(np.argmax(network(test_images), axis=1) == test_labels))
    loss = float(hvd.allreduce(tf.constant(np.mean(losses)), op=hvd.Average))
    if rank == 0:
        print(f"epoch {epoch:2d}  loss {loss:.3f}  accuracy {accuracy:.3f}", flush=True)

    # Step 5: checkpoint on rank 0 only; all ranks have the same network, and two that write one file spoil it.
    if rank == 0 and args.checkpoint:
        network.save_weights(args.checkpoint)
seconds = time.perf_counter() - started

# Did all ranks train one network? Each parameter on every rank, minus that of rank 0.
parameters = tf.concat([tf.reshape(variable, [-1]) for variable in network.trainable_variables], axis=0)
everybody = hvd.allgather(tf.expand_dims(parameters, 0))
difference = float(tf.reduce_max(tf.abs(everybody - everybody[0])))

# One write for the text and its end of line: print makes two, and the lines of two ranks could mix.
device = "gpu" if gpus else "cpu"
sys.stdout.write(f"rank {rank} of {world_size}  local rank {local_rank}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
hvd.allreduce(tf.zeros(1))  # nobody leaves before all have arrived
hvd.shutdown()
if rank == 0:
    result = {
        "accuracy": accuracy,
        "loss": loss,
        "epochs": args.epochs,
        "world_size": world_size,
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "samples_per_second": round(share * world_size * args.epochs / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
sys.exit(0 if difference == 0 else 1)
