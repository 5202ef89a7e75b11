"""Which prior scale suits how many members: the NLL of ensembles of untrained priors on CIFAR10's last training images.

    python -m benchmarks.studies.cifar10_prior_scale

Where data are few, a member predicts little more than its prior. With few members a large scale leaves most images
without any member that is right; with many, it lets one of them be right about both anchors of a joint prediction.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from tf_ensembles.benchmarks.commands import places

SCALES = (1.0, 3.0, 10.0, 30.0)
SIZES = (1, 3, 10, 30, 100)


def prior_logits(num_members: int, num_images: int, data_dir: str | None = None) -> tuple[Any, Any]:
    """Returns the logits of untrained priors, `[images, members, classes]`, and the labels `[images]`."""
    import tensorflow as tf
    import tqdm

    from tf_ensembles.ensemble.members import building as members
    from tf_ensembles.trainers.images import config as member_config
    from tf_ensembles.trainers.images import data as image_data
    from tf_ensembles.trainers.images import runs as cifar10_runs
    from tf_ensembles.trainers.images import vgg

    config = member_config.MemberConfig(data=member_config.VALIDATION, num_train=10, num_test=num_images)
    data = cifar10_runs.load_member_data(config, data_dir)[1]
    images = tf.constant(image_data.standardize(data, data.images))
    prior = vgg.build_conv_prior(data.input_shape, data.num_classes)
    predict = tf.function(lambda: prior(images))
    logits = []
    for member in tqdm.tqdm(range(num_members), desc="priors"):
        with members.seeded(0, member):
            prior.set_weights(vgg.build_conv_prior(data.input_shape, data.num_classes).get_weights())
        logits.append(predict().numpy())
    return np.stack(logits, axis=1), data.labels


def score(logits: Any, labels: Any, scale: float, size: int) -> tuple[float, float]:
    """Returns marginal and dyadic NLL of ensembles of one size, averaged over as many as there are members for."""
    from tf_ensembles import metrics

    groups = [scale * logits[:, start : start + size] for start in range(0, logits.shape[1] - size + 1, size)]
    marginal = [float(metrics.marginal_nll(group, labels)) for group in groups]
    joint = [float(metrics.dyadic_nll(group, labels, tau=10)) for group in groups]
    return float(np.mean(marginal)), float(np.mean(joint))


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=100, help="priors to draw (default 100)")
    parser.add_argument("--images", type=int, default=500, help="to score on (default 500)")
    places.add_data_dir(parser)
    args = parser.parse_args()
    logits, labels = prior_logits(args.members, args.images, args.data_dir)
    print("marginal / dyadic NLL; uniform predictions have 2.30 / 23.03")
    print("scale  " + "".join(f"{f'{size} members':>16}" for size in SIZES if size <= args.members))
    for scale in SCALES:
        cells = [score(logits, labels, scale, size) for size in SIZES if size <= args.members]
        print(f"{scale:>5g}  " + "".join(f"{f'{one:.2f} / {two:.2f}':>16}" for one, two in cells))


if __name__ == "__main__":
    main()
