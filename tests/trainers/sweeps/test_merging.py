"""Rows of several places: packed into a file, merged into a folder, each run once; damaged sources change nothing."""

from __future__ import annotations

import lzma

import pytest

from tf_ensembles import files
from tf_ensembles.trainers.sweeps import merging, store, sweep

FUNCTION = "tests.sweep_functions:square"


def make_runs(numbers):
    return [sweep.make_run(f"squares/seed{n}", FUNCTION, {"x": float(n), "seed": n}) for n in numbers]


def computed(folder, numbers):
    """A results folder with the runs of some numbers."""
    with sweep.Sweep(folder, num_workers=1) as mine:
        mine.execute(make_runs(numbers))
    return folder


def squares(folder):
    return sorted((row["seed"], row["square"]) for row in store.read_results(folder))


def test_rows_of_other_machines_are_not_computed_again(tmp_path):
    left, right = computed(tmp_path / "left", range(4)), computed(tmp_path / "right", range(2, 7))
    assert merging.pack(right, tmp_path / "right.jsonl.xz") == 5
    target = tmp_path / "target"
    merged = merging.merge(target, [left, tmp_path / "right.jsonl.xz"])
    assert [(one.added, one.known) for one in merged] == [(4, 0), (3, 2)]
    assert squares(target) == [(n, float(n) ** 2) for n in range(7)]
    # Again: nothing is added, and nothing is there twice.
    assert [(one.added, one.known) for one in merging.merge(target, [left])] == [(0, 4)]
    assert len(store.read_results(target)) == 7
    with sweep.Sweep(target, num_workers=1) as mine:
        assert mine.execute(make_runs(range(8))).completed == 1
    assert squares(target) == [(n, float(n) ** 2) for n in range(8)]


def test_a_packed_row_is_the_row(tmp_path):
    folder = computed(tmp_path / "one", range(3))
    merging.pack(folder, tmp_path / "one.jsonl.xz")
    merging.merge(tmp_path / "two", [tmp_path / "one.jsonl.xz"])
    assert sorted(store.read_results(tmp_path / "two"), key=str) == sorted(store.read_results(folder), key=str)


def test_damaged_or_wrong_sources_are_refused_before_anything_is_taken(tmp_path):
    good = computed(tmp_path / "good", range(3))
    merging.pack(good, tmp_path / "good.jsonl.xz")
    whole = (tmp_path / "good.jsonl.xz").read_bytes()
    lines = lzma.decompress(whole).splitlines(keepends=True)
    damaged = {
        "cut": whole[: len(whole) // 2],
        "no_xz": b"".join(lines),
        "other_row": lzma.compress(lines[0] + lines[1].replace(b'"square": 1.0', b'"square": 7.0') + lines[2]),
    }
    assert damaged["other_row"] != whole
    for name, content in damaged.items():
        path = tmp_path / f"{name}.jsonl.xz"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"whole file that 'sweep pack' made. Received: .*{name}"):
            merging.merge(tmp_path / "target", [good, path])
    (tmp_path / "empty").mkdir()
    for source, said in (
        ("empty", "Expected rows of completed runs"),
        ("none.jsonl.xz", "which is not there"),
        ("good/results.jsonl", "Expected results folders of sweeps, or files that end with .jsonl.xz"),
    ):
        with pytest.raises(ValueError, match=said):
            merging.merge(tmp_path / "target", [good, tmp_path / source])
    assert not (tmp_path / "target").exists()
    with pytest.raises(ValueError, match=r"ends with \.jsonl\.xz\. Received: .*rows\.gz"):
        merging.pack(good, tmp_path / "rows.gz")
    with pytest.raises(ValueError, match="Expected rows of completed runs"):
        merging.pack(tmp_path / "empty", tmp_path / "empty.jsonl.xz")


def test_a_folder_in_use_is_packed_and_not_merged_into(tmp_path):
    folder = computed(tmp_path / "one", range(3))
    other = computed(tmp_path / "two", range(3, 5))
    with store.Store(folder):
        assert merging.pack(folder, tmp_path / "one.jsonl.xz") == 3
        with pytest.raises(store.FolderInUseError):
            merging.merge(folder, [other])


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """Rows of five runs."""
    return store.read_results(computed(tmp_path_factory.mktemp("five"), range(5)))


@pytest.mark.parametrize("packed", [True, False], ids=["file", "folder"])
@pytest.mark.parametrize(
    "change",
    [
        {"hash": None},
        {"id": None},
        {"hash": ["0" * 32]},
        {"id": 7},
        {"hash": "0" * 32},
        {"config": None},
        {"config": [1.0]},
        {"config": {"x": 1.0, "seed": 2}},
        {"kind": None},
        {"kind": ["square"]},
    ],
    ids=str,
)
def test_sealed_lines_that_are_no_rows_are_refused_before_any_row_is_taken(tmp_path, five, change, packed, caplog):
    """Their checksums match, because another program wrote them."""
    target, good, other = (tmp_path / name for name in ("target", "good", "other"))
    changed = {name: value for name, value in {**five[3], **change}.items() if value is not None}
    contents = {target: five[:1], good: five[:2], other: [five[2], changed, five[4]]}
    for folder, rows in contents.items():
        folder.mkdir()
        (folder / store.RESULTS).write_bytes(b"".join(files.seal(row) + b"\n" for row in rows))
    source = other
    if packed:
        source = tmp_path / "other.jsonl.xz"
        source.write_bytes(lzma.compress((other / store.RESULTS).read_bytes()))
    no_row = {"hash", "id"} & set(change) and change.get("hash") != "0" * 32
    if no_row and not packed:  # A damaged line of a folder is left out, which is told; the others are rows.
        assert [one.added for one in merging.merge(target, [good, source])] == [1, 2]
        assert "1 damaged line left out (line 2)" in caplog.text
        return
    with pytest.raises(ValueError, match=r"Received: (row 2|.*damaged after 1 rows)"):
        merging.merge(target, [good, source])
    assert squares(target) == [(0, 0.0)]
