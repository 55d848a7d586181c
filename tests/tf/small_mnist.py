"""Run by the training Python in place of `python -m worker_entry.prepare`: the real MNIST set, made smaller.

Writes the four original files (of random numbers) where tensorflow-datasets looks for files that were
fetched by hand, tells it their sizes and checksums, and prepares them with the command line given.
"""

import gzip
import hashlib
import os
import sys
from pathlib import Path

from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import mnist

from worker_entry.data import prepared
from worker_entry.prepare import main

prepared.HOST = "127.0.0.1:1"
manual = Path(sys.argv[sys.argv.index("--data-dir") + 1], "downloads", "manual")
manual.mkdir(parents=True)
mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES = 600, 100
urls = {}
for part, count in (("train", 600), ("t10k", 100)):
    for name, content in (
        (f"{part}-images-idx3-ubyte.gz", bytes(16) + os.urandom(28 * 28 * count)),
        (f"{part}-labels-idx1-ubyte.gz", bytes(8) + bytes(n % 10 for n in range(count))),
    ):
        data = gzip.compress(content)
        (manual / name).write_bytes(data)
        urls[mnist._MNIST_URL + name] = checksums.UrlInfo(
            size=len(data), checksum=hashlib.sha256(data).hexdigest(), filename=name
        )
mnist.MNIST.url_infos = urls
sys.exit(main(sys.argv[1:]))
