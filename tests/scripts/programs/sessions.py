"""TensorFlow 1 as it was: placeholders, a session, a saver."""
import tensorflow.compat.v1 as tf
import data

tf.disable_v2_behavior()
x = tf.placeholder(tf.float32, [None, 8])
y = tf.placeholder(tf.float32, [None, 1])
w = tf.get_variable("w", [8, 1], initializer=tf.zeros_initializer())
loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=tf.matmul(x, w)))
train_op = tf.train.AdamOptimizer(0.1).minimize(loss)
saver = tf.train.Saver()
a, b = data.load()
with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(30):
        _, value = sess.run([train_op, loss], {x: a, y: b[:, None]})
    saver.save(sess, "./v1/model", global_step=i)
print("final loss %.6f" % value)
