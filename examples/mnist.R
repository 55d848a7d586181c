# The tutorial of fit.py in R: the same network, the same steps, the same weights in the end.
#
# orchestrate launch -- examples/mnist.R              scikit-learn's digits, enlarged to MNIST's shape
# orchestrate launch -- examples/mnist.R DATA_DIR     MNIST as prepared there by tensorflow-datasets

library(reticulate)
library(jsonlite)

# Nothing is converted between R and Python: tensors and arrays stay Python objects.
tf <- import("tensorflow", convert = FALSE)
np <- import("numpy", convert = FALSE)
layers <- tf$keras$layers

BATCH_PER_TASK <- 64L # a whole number is written with L: 64 would be the float 64.0

digits <- function() {
  all <- import("sklearn.datasets", convert = FALSE)$load_digits()
  images <- all$images$reshape(-1L, 8L, 8L, 1L)$astype("float32")$`__truediv__`(16)
  images <- images$`repeat`(3L, 1L)$`repeat`(3L, 2L) # `repeat` is a word of R's own
  margin <- tuple(2L, 2L)
  images <- np$pad(images, tuple(tuple(0L, 0L), margin, margin, tuple(0L, 0L)))
  tf$data$Dataset$from_tensor_slices(tuple(images, all$target))
}

mnist <- function(data_dir) {
  tfds <- import("tensorflow_datasets", convert = FALSE)
  data <- tfds$load("mnist", split = "train", as_supervised = TRUE, data_dir = data_dir, download = FALSE)
  data$map(function(image, label) tuple(tf$cast(image, tf$float32)$`__truediv__`(255), label))$cache()
}

build_and_compile <- function() {
  model <- tf$keras$Sequential(list(
    tf$keras$Input(tuple(28L, 28L, 1L)),
    layers$Conv2D(32L, 3L, activation = "relu"),
    layers$MaxPooling2D(),
    layers$Flatten(),
    layers$Dense(64L, activation = "relu"),
    layers$Dense(10L)
  ))
  model$compile(
    loss = tf$keras$losses$SparseCategoricalCrossentropy(from_logits = TRUE),
    optimizer = tf$keras$optimizers$Adam(1e-3),
    metrics = list("accuracy")
  )
  model
}

# The strategy comes first: it starts this task's server, which must precede all other TensorFlow calls.
strategy <- tf$distribute$MultiWorkerMirroredStrategy()
with(strategy$scope(), model <- build_and_compile())
global_batch <- BATCH_PER_TASK * py_to_r(strategy$num_replicas_in_sync)

data_dir <- commandArgs(trailingOnly = TRUE)
data <- if (length(data_dir)) mnist(data_dir[1]) else digits()
data <- data$shuffle(10000L, seed = 42L)$`repeat`()$batch(global_batch, drop_remainder = TRUE)
# Sharded by data: MNIST is one file, so sharding by file would leave all tasks but one without data.
options <- tf$data$Options()
options$experimental_distribute$auto_shard_policy <- tf$data$experimental$AutoShardPolicy$DATA
history <- model$fit(data$with_options(options), epochs = 3L, steps_per_epoch = 20L, verbose = 2L)

task <- fromJSON(Sys.getenv("TF_CONFIG", '{"task": {"type": "worker", "index": 0}}'))$task
digest <- import("hashlib")$sha256()
for (weight in iterate(model$get_weights())) digest$update(weight$tobytes())
digest <- substr(digest$hexdigest(), 1, 16)
accuracy <- tail(py_to_r(history$history)$accuracy, 1)
cat(sprintf("%s/%d: weights %s, accuracy %.4f\n", task$type, task$index, digest, accuracy))
