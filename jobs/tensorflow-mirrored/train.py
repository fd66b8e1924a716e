"""Handwritten digits with TensorFlow's MirroredStrategy: one process, and a copy of the network (a replica) on each device of the node.

It takes all GPUs that it sees. Without GPUs it makes two devices out of the CPU, so that the same script has something to mirror.
"""

import argparse
import json
import sys
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per replica and step (default 16)")
parser.add_argument("--lr", type=float, default=0.1, help="learning rate of SGD (default 0.1)")
parser.add_argument("--replicas", type=int, default=2, help="devices to make out of the CPU where there are no GPUs (default 2)")
args = parser.parse_args()

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    devices = [f"GPU:{index}" for index in range(len(gpus))]
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * args.replicas)
    devices = [f"CPU:{index}" for index in range(args.replicas)]
strategy = tf.distribute.MirroredStrategy(devices)
world_size = strategy.num_replicas_in_sync

# 1,797 real digits of 8x8 pixels, split in the same way in every run.
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(2022).permutation(len(labels))
images, labels = (images[order] / 16).astype("float32"), labels[order]
# The batch is that of all replicas together: the strategy gives each one its part. A rest that is smaller is left out.
digits = tf.data.Dataset.from_tensor_slices((images[:1437], labels[:1437]))
batches = digits.shuffle(1437, seed=0).batch(args.batch_size * world_size, drop_remainder=True)
test_images, test_labels = images[1437:], labels[1437:]

tf.keras.utils.set_random_seed(0)
with strategy.scope():  # what is made in here, variables above all, is made once for each replica
    layers = [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(10)]
    network = tf.keras.Sequential(layers)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(optimizer=tf.keras.optimizers.SGD(args.lr, momentum=0.9), loss=loss_of)

started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    history = network.fit(batches, verbose=0).history  # in each step the gradients of all replicas are summed
    loss = history["loss"][-1]
    accuracy = float(np.mean(np.argmax(network(test_images), axis=1) == test_labels))
    print(f"epoch {epoch:2d}  loss {loss:.3f}  accuracy {accuracy:.3f}", flush=True)
seconds = time.perf_counter() - started

# Did all replicas train one network? Each parameter on every replica, minus that of the first.
copies = [[copy.numpy() for copy in strategy.experimental_local_results(variable)] for variable in network.trainable_variables]
difference = max(float(np.abs(copy - ours[0]).max()) for ours in copies for copy in ours)
for index, copy in enumerate(strategy.experimental_local_results(network.trainable_variables[0])):
    print(f"replica {index} of {world_size}  device {copy.device}", flush=True)

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
