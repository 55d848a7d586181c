"""Two networks and two optimizers against each other, on one machine, Keras 3."""
import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
optimizers = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
entropy = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function(jit_compile=True)
def step(real, noise):
    with tf.GradientTape() as g, tf.GradientTape() as c:
        fake = generator(noise, training=True)
        said, heard = critic(real, training=True), critic(fake, training=True)
        loss_c = entropy(tf.ones_like(said), said) + entropy(tf.zeros_like(heard), heard)
        loss_g = entropy(tf.ones_like(heard), heard)
    optimizers[0].apply_gradients(zip(g.gradient(loss_g, generator.trainable_variables), generator.trainable_variables))
    optimizers[1].apply_gradients(zip(c.gradient(loss_c, critic.trainable_variables), critic.trainable_variables))
    return loss_c


for _ in range(20):
    loss = step(tf.random.normal((32, 2), 2.0), tf.random.normal((32, 4)))
print("final loss %.6f" % float(loss))
