"""Parameter servers as in TensorFlow 1: between-graph replication, a MonitoredTrainingSession per worker."""
import json
import os

import tensorflow.compat.v1 as tf

import data

tf.disable_eager_execution()


def main(_):
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()
    with tf.device(tf.train.replica_device_setter(worker_device="/job:%s/task:%d" % (job, index), cluster=cluster)):
        x_, y_ = data.load()
        x, y = tf.constant(x_), tf.constant(y_.astype("float32")[:, None])
        w = tf.get_variable("w", [8, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x @ w))
        step = tf.train.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=step)
    hooks = [tf.train.StopAtStepHook(last_step=40)]
    last = None
    with tf.train.MonitoredTrainingSession(server.target, is_chief=job == "chief", hooks=hooks, checkpoint_dir=os.environ["MODEL_DIR"] if job == "chief" else None) as session:
        while not session.should_stop():
            _, last = session.run([train, loss])
    if job == "chief":
        print("final loss %.6f" % last)


if __name__ == "__main__":
    tf.app.run()
