import tensorflow as tf

mirrored_strategy = tf.distribute.MirroredStrategy()  # Optionally include devices=["/gpu:0", "/gpu:1"] in the constructor to select only a subset of GPUs

with mirrored_strategy.scope():
  model = tf.keras.Sequential([
    tf.keras.layers.Dense(1, input_shape=(1,),
                          kernel_regularizer=tf.keras.regularizers.L2(1e-4))])
  model.compile(loss='mse', optimizer='sgd')

# Example dataset, please replace
dataset = tf.data.Dataset.from_tensors(([1.], [1.])).repeat(400).batch(80)  # 80 % 8 == 0 -> Make sure to keep it modulo 0 should the number of GPUs (here 8) change!
model.fit(dataset, epochs=5)
model.evaluate(dataset)
