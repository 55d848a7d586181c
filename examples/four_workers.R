# The multi-worker tutorial in R: as many workers as TF_CONFIG names, 64 examples per step for each.
#
# orchestrate launch -- examples/four_workers.R     on four hosts, or on four tasks of one (tasks = 4)

library(reticulate)
library(jsonlite)

tf <- import("tensorflow", convert = FALSE)
np <- import("numpy", convert = FALSE)

config <- fromJSON(Sys.getenv("TF_CONFIG", '{"cluster": {"worker": ["localhost"]}, "task": {"index": 0}}'))
workers <- length(config$cluster$worker)
me <- config$task$index

strategy <- tf$distribute$MultiWorkerMirroredStrategy() # before all else of TensorFlow

digits <- import("sklearn.datasets", convert = FALSE)$load_digits()
images <- digits$images$reshape(-1L, 8L, 8L, 1L)$astype("float32")$`__truediv__`(16) # not images / 16
data <- tf$data$Dataset$from_tensor_slices(tuple(images, digits$target))
data <- data$shuffle(10000L, seed = 42L)$`repeat`()$batch(64L * workers)
options <- tf$data$Options()
options$experimental_distribute$auto_shard_policy <- tf$data$experimental$AutoShardPolicy$DATA

with(strategy$scope(), {
  model <- tf$keras$Sequential(list(
    tf$keras$Input(tuple(8L, 8L, 1L)),
    tf$keras$layers$Conv2D(16L, 3L, activation = "relu"),
    tf$keras$layers$Flatten(),
    tf$keras$layers$Dense(10L)
  ))
  model$compile(
    loss = tf$keras$losses$SparseCategoricalCrossentropy(from_logits = TRUE),
    optimizer = tf$keras$optimizers$Adam(0.01),
    metrics = list("accuracy")
  )
})

history <- model$fit(data$with_options(options), epochs = 3L, steps_per_epoch = 10L, verbose = 2L)
model$save(sprintf("model-%d.keras", me)) # by all of them, each to a path of its own
accuracy <- tail(py_to_r(history$history)$accuracy, 1)
cat(sprintf("worker %d of %d: accuracy %.4f\n", me, workers, accuracy))
