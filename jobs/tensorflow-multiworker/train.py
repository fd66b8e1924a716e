"""Handwritten digits with TensorFlow's MultiWorkerMirroredStrategy: a process (worker) on each node, one network on all of them.

Started once per worker, with TF_CONFIG in its environment, which says where all workers are and which one this is. The strategy reads it.
"""

import argparse
import json
import socket
import sys
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per replica and step (default 16)")
parser.add_argument("--lr", type=float, default=0.1, help="learning rate of SGD (default 0.1)")
args = parser.parse_args()

# Before anything else of TensorFlow: here the workers wait for each other. Each GPU of a worker becomes a replica, else its CPU does.
strategy = tf.distribute.MultiWorkerMirroredStrategy()
world_size = strategy.num_replicas_in_sync
rank = strategy.cluster_resolver.task_id or 0

# 1,797 real digits of 8x8 pixels, split in the same way on every worker and in every run.
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(2022).permutation(len(labels))
images, labels = (images[order] / 16).astype("float32"), labels[order]
# The batch is that of all replicas together. Every worker sees all images, and the strategy lets each have its part of every batch.
digits = tf.data.Dataset.from_tensor_slices((images[:1437], labels[:1437]))
batches = digits.shuffle(1437, seed=0).batch(args.batch_size * world_size, drop_remainder=True)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
batches = batches.with_options(options)
test_images, test_labels = images[1437:], labels[1437:]

# The seed differs by worker on purpose: it is the strategy that makes the networks equal, by sending the first worker's to all.
tf.keras.utils.set_random_seed(rank)
with strategy.scope():  # what is made in here, variables above all, is made once for each replica, and begins as the same
    layers = [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(10)]
    network = tf.keras.Sequential(layers)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(optimizer=tf.keras.optimizers.SGD(args.lr, momentum=0.9), loss=loss_of)

started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    history = network.fit(batches, verbose=0).history  # in each step the gradients of all replicas are summed
    loss = history["loss"][-1]
    accuracy = float(np.mean(np.argmax(network(test_images), axis=1) == test_labels))
    if rank == 0:
        print(f"epoch {epoch:2d}  loss {loss:.3f}  accuracy {accuracy:.3f}", flush=True)
seconds = time.perf_counter() - started


# Did all workers train one network? Each parameter on every replica, minus that of the first.
@tf.function
def parameters():
    return strategy.run(lambda: tf.expand_dims(tf.concat([tf.reshape(one, [-1]) for one in network.trainable_variables], 0), 0))


everybody = strategy.gather(parameters(), axis=0)  # it waits for all workers, too: nobody leaves before all have arrived
difference = float(tf.reduce_max(tf.abs(everybody - everybody[0])))

# One write for the text and its end of line: print makes two, and the lines of two ranks could mix.
sys.stdout.write(f"rank {rank} of {world_size}  host {socket.gethostname()}  device {network.trainable_variables[0].device}\n")
sys.stdout.flush()
if rank == 0:
    result = {
        "accuracy": accuracy,
        "loss": loss,
        "epochs": args.epochs,
        "world_size": world_size,
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "samples_per_second": round(len(batches) * args.batch_size * world_size * args.epochs / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
sys.exit(0 if difference == 0 else 1)
