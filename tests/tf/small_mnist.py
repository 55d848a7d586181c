"""Run by the training Python in place of our programs: the MNIST data set with the files of `mnist_files`.

    python -m tests.tf.small_mnist FILES URL OPTION ...

Gives tensorflow-datasets the sizes, checksums, and URL of the files, then runs worker_entry.
"""

import hashlib
import sys
from pathlib import Path

from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import mnist

from tests.tf.mnist_files import TEST, TRAIN
from worker_entry.__main__ import main

if __name__ == "__main__":
    files, url, *options = sys.argv[1:]
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
    sys.exit(main(options))
