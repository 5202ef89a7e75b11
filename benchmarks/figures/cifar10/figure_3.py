"""Figure 3: a VGG, ensembles of it, and ensembles with prior functions, on CIFAR10.

Training sets of several sizes, averaged; scores relative to the single VGG. The claims: on marginal predictions n and p
are alike and better than the VGG; on joint predictions p is much better than n. Figure 10 shows the same runs by the
size of the training set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles.benchmarks.figures.base import NOT_STATED
from tf_ensembles.benchmarks.figures.cifar10 import base, runs
from tf_ensembles.benchmarks.figures.cifar10.runs import VGG, N, P
from tf_ensembles.benchmarks.figures.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

LARGEST = "cifar10_largest"  # names the tables of the study on larger training sets


class PlainFigure(base.Cifar10Figure):
    """A figure without bootstrapping: figures 3 and 10."""

    reference = VGG
    pairs = ((N, VGG), (P, VGG), (P, N))
    paper = {
        "members": "100",
        "seeds": NOT_STATED,
        "training images T": base.PAPER_SIZES,
        "prior scales": "30",
        **base.PAPER,
    }
    full_size = (
        "The paper's size: 201 VGG networks for each of 4 training sets, 400 epochs of up to 50,000 images, on TPUs; "
        "the preset has five times as many, for five seeds."
    )
    # With few members a large prior scale leaves most images without any member that is right. The study
    # `cifar10_settings` chose those of the smaller presets.
    presets = {
        "quick": runs.Size(
            (runs.TINY_10, runs.TINY_100), num_members=3, prior_scales=(3.0,), width=runs.NARROW, own_vgg=1
        ),
        "standard": runs.Size(
            (runs.SMALL_10, runs.SMALL_100, runs.SMALL_1000),
            num_members=15,
            prior_scales=(10.0,),
            width=runs.NARROW,
            own_vgg=5,
        ),
        # The paper's members and prior scale; the first 10 of each seed are figure 4's. Larger training sets are a
        # study of their own, `cifar10_largest`, whose rows are shown here, too.
        "large": runs.Size(
            runs.LARGE_SMALL_SETS,
            num_members=100,
            prior_scales=(30.0,),
            width=runs.NARROW,
            **runs.LARGE_CLEAN,
            own_vgg=5,
        ),
        # The paper does not say how many seeds it has.
        "paper": runs.Size(runs.PAPER, num_members=100, prior_scales=(30.0,), own_vgg=5),
    }

    def agents_of(self, size: runs.Size) -> list[runs.Agent]:
        """Returns a single VGG, ensemble-n and ensemble-p."""
        return runs.plain_agents(size)

    def kept(self, tables: Tables) -> pd.DataFrame:
        """Returns the runs, and those of the study on larger training sets where they are there."""
        import pandas as pd

        own = super().kept(tables)
        if not tables.has(f"cifar10/{LARGEST}_runs.csv"):
            return own
        return pd.concat([own, self.read_kept(tables, LARGEST)], ignore_index=True)


class _Figure(PlainFigure):
    id, name, place = "F3", "figure_3", (5.2, 3)
    title = "Figure 3: CIFAR10, prior functions"
    about = "A single network, ensembles of it, and ensembles with prior functions; mean over training sets."


FIGURE = _Figure()
