"""A package that is run as one, with settings as modules, subpackages, and a helper process before TensorFlow."""
import argparse
import concurrent.futures
import importlib
import multiprocessing

from .prepare import piece


def main():
    parser = argparse.ArgumentParser(prog="app")
    parser.add_argument("--config", default="base")
    args = parser.parse_args()
    config = importlib.import_module(f"app.configs.{args.config}")
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        pieces = list(pool.map(piece, range(2)))

    import numpy as np
    import tensorflow as tf

    from lib_free import build

    x, y = (np.concatenate(parts) for parts in zip(*pieces))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build(tf, config.RATE)
    history = model.fit(x, y, batch_size=config.BATCH, epochs=config.EPOCHS, shuffle=False, verbose=0)
    print("final loss %.6f" % history.history["loss"][-1])


if __name__ == "__main__":
    main()
