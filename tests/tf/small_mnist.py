"""Run by the training Python in place of our programs: the real MNIST set, with the files of `mnist_files`.

    python -m tests.tf.small_mnist MODULE FILES URL OPTION ...

Tells tensorflow-datasets the files' sizes and checksums, and that they lie at URL ("-": where they lie in
truth); then runs MODULE's `main` with the options.
"""

import hashlib
import importlib
import sys
from pathlib import Path

from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import mnist

from tests.tf.mnist_files import TEST, TRAIN

if __name__ == "__main__":
    module, files, url, *options = sys.argv[1:]
    if url != "-":
        mnist.MNIST.URL = url
    mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES = TRAIN, TEST
    mnist.MNIST.url_infos = {
        mnist.MNIST.URL + path.name: checksums.UrlInfo(
            size=path.stat().st_size,
            checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
            filename=path.name,
        )
        for path in Path(files).iterdir()
    }
    sys.exit(importlib.import_module(module).main(options))
